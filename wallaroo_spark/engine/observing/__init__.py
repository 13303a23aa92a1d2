"""The state of a running application: the gauges of its batches, its snapshots, and the places that have them."""
