"""The owner's rules, evaluated now: preferences, quiet hours, budgets, the least that stays private.

Facts about the device come from `sensors`; the answer to a work request is sent by `job`.
"""
