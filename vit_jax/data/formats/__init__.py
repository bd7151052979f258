"""Image formats: headers, orientation and decoding of files, with limits and checks that the data are complete."""
