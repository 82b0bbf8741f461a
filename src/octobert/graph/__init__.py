"""The float graph: capture, canonical form, structure, parity, and the QDQ writer."""
