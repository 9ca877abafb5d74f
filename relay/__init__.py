"""The relay: a device of one coordinator and the coordinator of a site with a broker of its own.

A work request of the hub becomes one round of the site. The mean of the site's updates is the relay's update; in a masked
round it is their sum. To the hub a relay is an agent (device_agent.runtime) whose training is that round. To the site it
is a coordinator (coordinator.runtime) that runs one round at a time.
"""

if __name__ != "fedpatch.relay":
    raise ImportError(
        "import fedpatch.relay, not relay: the packages of fedpatch are parts of the package fedpatch", name="relay"
    )
