"""EndpointPickerConfig: the file's schema, its defaults and injection rules, and errors that teach."""
