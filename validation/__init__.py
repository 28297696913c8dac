"""The checks of a release, each with a stable code. Reads the release alone and shares no code with the builder."""
