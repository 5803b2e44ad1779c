"""Measurements that others published under licences that let us pass them on."""
