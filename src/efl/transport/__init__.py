"""Ways between the coordinator and its clients. All carry the same bytes, so all give the same model."""
