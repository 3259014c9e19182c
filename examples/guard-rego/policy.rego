# A guard of plans: when a fleet may be divided anew, and how much of it at once.
#
# The same file serves "cascade policy test --build", which makes a module of it that any
# host of a fleet can run, and a control plane that has it among its own rules. What
# rules see is written down in wasm/host/opa. Its settings, all of them
# optional, are the policy's configuration, in JSON:
#
#   {"guard": {"window": {"opens": 22, "closes": 5},   hours of the day, UTC
#              "stages": 1,                            that may change at once
#              "keep": ["replica-0"]}}                 never moved to another stage
package cascade.plan

default site := {}

site := data.guard

before := input.before.stages

after := input.after.stages

cuts(stages) := {stage.low | some stage in stages}

# A fleet's first plan, and one that only takes in a replica or gives one up, are
# always let through: requests need a place to go.
divided if {
	count(before) > 0
	cuts(before) != cuts(after)
}

hour := floor((input.now % 86400) / 3600)

open if {
	site.window.opens <= site.window.closes
	hour >= site.window.opens
	hour < site.window.closes
}

open if {
	site.window.opens > site.window.closes
	hour >= site.window.opens
}

open if {
	site.window.opens > site.window.closes
	hour < site.window.closes
}

deny contains {"code": 1, "detail": "stages change in the maintenance window only"} if {
	divided
	site.window
	not open
}

# A cut that goes and one that comes are one stage that changes.
changed := max([count(cuts(before) - cuts(after)), count(cuts(after) - cuts(before))])

deny contains {"code": 2, "detail": "more stages change at once than the site allows"} if {
	divided
	changed > object.get(site, "stages", 1)
}

deny contains {"code": 3, "stage": i, "detail": "a replica that the site keeps would get another stage"} if {
	some id in site.keep
	some old in before
	id in old.replicas
	some i, new in after
	id in new.replicas
	old.low != new.low
}

warn contains {"code": 100, "stage": i, "detail": "one replica alone: its failure empties the stage"} if {
	count(after) > 1
	some i, stage in after
	count(stage.replicas) == 1
}
