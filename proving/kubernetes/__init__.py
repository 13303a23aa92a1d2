"""The chart of conf/kubernetes on a real control plane, whose node is a program that starts containers with crun."""
