"""Python runs this as it starts wherever this folder is on its path: in all that the driver of a test starts."""

from tests.crash.deaths import be_mortal

be_mortal()
