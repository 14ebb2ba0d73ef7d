"""HTTP as the router reads and writes it, whatever a request asks for: headers, bodies, errors."""
