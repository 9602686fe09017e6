"""What ``scripts/cluster`` does around Ansible: checks of the inventory, the release, the report.

Runs in Ansible's own environment, so it uses the standard library alone.
"""
