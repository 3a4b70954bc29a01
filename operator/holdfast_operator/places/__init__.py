"""The stores that a spec names: what may be opened, with which credentials, and how calls to them wait."""
