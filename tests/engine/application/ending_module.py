"""A module that ends the program that imports it, as a script without a guard does."""

import sys

sys.exit(3)
