"""What people and programs see of a receiver or an application: figures, causes, and the faces that show them."""
