# How a policy may go from step to step. Limits come from data.limits.slot:
#
#   {"step": 10,              a share may grow by this factor
#    "first": 10,             ‰ of the first canary
#    "soak": 30,              seconds at each step before the next
#    "signers": {"partition": 2},   keys that must have signed, by kind; others 1
#    "stable": []}            slots where "stable" may skip the way up
package cascade.slot

defaults := {"step": 10, "first": 10, "soak": 30, "signers": {"partition": 2, "guard": 2}, "stable": []}

default site := {}

site := data.limits.slot

limits := object.union(defaults, site)

order := {"": 0, "warm": 1, "shadow": 2, "canary": 3, "active": 4}

# Back is always allowed: nothing below denies a step that is not up.
up if order[input.to] > order[input.from]

up if {
	input.to == "canary"
	input.from == "canary"
	input.permille > input.permille_before
}

# Fail closed on words that are not known here.
deny contains {"code": 1, "detail": "unknown stage"} if not known

known if {
	order[input.from] >= 0
	order[input.to] >= 1
}

skips if {
	input.stable
	input.slot in limits.stable
}

deny contains {"code": 2, "detail": "stable is not allowed in this slot"} if {
	input.stable
	not skips
}

deny contains {"code": 3, "detail": "shadow comes first"} if {
	up
	not skips
	order[input.to] >= 3
	order[input.from] < 2
}

deny contains {"code": 4, "detail": "canary comes before active"} if {
	up
	not skips
	input.to == "active"
	order[input.from] < 3
}

deny contains {"code": 5, "detail": "the share grows too fast"} if {
	up
	not skips
	input.to == "canary"
	input.scope == ""
	input.permille > max([limits.first, limits.step * input.permille_before])
}

deny contains {"code": 6, "detail": "not long enough at this step"} if {
	up
	not skips
	order[input.from] >= 2
	input.soaked < limits.soak
}

deny contains {"code": 7, "detail": "too few signers for this kind"} if {
	count({s | some s in input.signers}) < object.get(limits.signers, input.kind, 1)
}

warn contains {"code": 100, "detail": "a pre-release"} if contains(input.version, "-")
