"""HTTP: requests and responses as values, the checks of a request, and the bounded server around them."""
