namespace longship::data {}
