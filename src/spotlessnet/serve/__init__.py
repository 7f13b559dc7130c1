"""A deletion desk: from a person's request to a published model and a receipt. The library never imports it."""
