"""The schema of an application: documents, their validation as a whole, and the versions that are kept."""
