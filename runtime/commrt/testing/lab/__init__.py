"""Several hosts on one machine, made of network namespaces behind links of limited rate."""
