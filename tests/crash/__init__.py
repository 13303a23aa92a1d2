"""Every named step of the way from a frame to its acknowledgement, each with a process that dies there."""
