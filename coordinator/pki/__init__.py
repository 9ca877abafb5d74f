"""Who is who in a fleet: its small CA, what was issued and revoked, and the bundles that devices are enrolled with."""
