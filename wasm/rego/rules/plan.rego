# What a plan may change at once. Limits come from data.limits.plan:
#
#   {"moved_share": 0.5,      replicas that may get another range, of those there are
#    "stages_step": 2,        by how many stages plans may differ
#    "smallest": 1,           replicas that a stage needs, in fleets of 4 and more
#    "freezes": [{"from": 1767139200, "to": 1767312000}]}   Unix seconds, no change
package cascade.plan

defaults := {"moved_share": 0.5, "stages_step": 2, "smallest": 1, "freezes": []}

default site := {}

site := data.limits.plan

limits := object.union(defaults, site)

before := input.before.stages

after := input.after.stages

total := count([id | some stage in after; some id in stage.replicas])

# The first plan replaces nothing: it changes as much as it likes.
deny contains {"code": 1, "detail": "moves more replicas at once than moved_share allows"} if {
	count(before) > 0
	input.moves > limits.moved_share * total
}

deny contains {"code": 2, "detail": "adds or removes more stages at once than stages_step allows"} if {
	count(before) > 0
	abs(count(after) - count(before)) > limits.stages_step
}

deny contains {"code": 3, "stage": i, "detail": "stage has fewer replicas than smallest"} if {
	total >= 4
	some i, stage in after
	count(stage.replicas) < limits.smallest
}

# In a freeze only plans with the same cuts are let through: who comes and goes
# must still be in a plan.
deny contains {"code": 4, "detail": "no change of stages during a freeze"} if {
	some freeze in limits.freezes
	input.now >= freeze.from
	input.now < freeze.to
	cuts(before) != cuts(after)
}

warn contains {"code": 100, "stage": i, "detail": "one replica alone: its failure empties the stage"} if {
	count(after) > 1
	some i, stage in after
	count(stage.replicas) == 1
}

cuts(stages) := [stage.low | some stage in stages]
