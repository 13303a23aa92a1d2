"""The outputs of an application's batches: files that tasks write, and the manifest that names them."""
