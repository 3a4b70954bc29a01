"""Facts for the pages: read from a location, without HTML, and bounded in size."""
