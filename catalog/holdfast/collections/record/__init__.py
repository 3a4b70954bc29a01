"""The controller's record of collections: values, commands and pure transitions, and their stored form."""
