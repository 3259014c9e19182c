package partition

// DefaultSlack is the slack of the fleet's planner. Every stage costs robustness, which no objective
// counts: a stage of one replica is lost with it. One per cent is less than the error of the models.
const DefaultSlack = 0.01

// withFewestStages returns, given a solved search, the search whose partition is the cheapest of those
// with the fewest stages that cost at most limit, which is no less than what the best one costs. The
// least cost with at most so many stages never rises with their number, so the number is found by
// bisection.
func (s *search) withFewestStages(limit float64) *search {
	few, tooFew := s, 0
	for tooFew+1 < len(few.counts) {
		stages := (tooFew + len(few.counts)) / 2
		if t := newSearch(s.table, stages, int(s.replicas)); t.solveWithin(limit) {
			few = t
		} else {
			tooFew = stages
		}
	}
	if few != s { // the gap of s is closed
		few.limit = len(few.counts) // what it finds in the gap must not have more stages
		few.closeGap()
	}
	return few
}

// solveWithin reports whether there is a partition that costs at most limit, and keeps one if there
// is. A cheaper one may remain to be found by closeGap.
func (s *search) solveWithin(limit float64) bool {
	high, ok := s.firstPartition()
	if !ok {
		return false
	}
	s.searchPrice(high)
	if s.best > limit && s.bound <= limit {
		s.closeGap()
	}
	return s.best <= limit
}
