"""Python runs this as it starts wherever this folder is on its path: in all that the driver of the sweep starts."""

from tests.engine.sweep.points import be_mortal

be_mortal()
