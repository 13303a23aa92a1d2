"""The values that go into the controller and come out of it."""
