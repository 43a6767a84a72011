package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// MaxListed bounds the records of one result and rule that a report holds about signed verdicts, and about receipts: anybody can
// sign any number. Of those beyond it one record says how many they are.
const MaxListed = 1000

// Listing counts the records of a report that are bounded. Its zero value is empty.
type Listing map[listed]int

type listed struct {
	result Result
	rule   string
}

// Add counts a record and reports whether it is to be listed.
func (l *Listing) Add(result Result, rule string) bool {
	if *l == nil {
		*l = make(Listing)
	}
	of := listed{result, rule}
	(*l)[of]++
	return (*l)[of] <= MaxListed
}

// Rest returns an unsigned log verdict for each result and rule of which there are more than were listed, in the order of rules
// and results.
func (l *Listing) Rest(at Verdict) []Verdict {
	var out []Verdict
	for _, of := range slices.SortedFunc(maps.Keys(*l), func(a, b listed) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.result, b.result))
	}) {
		if n := (*l)[of]; n > MaxListed {
			v := Verdict{Kind: KindLog, Session: at.Session, Seq: max(at.Seq, 1), Result: of.result, Rule: of.rule}
			v.Reason = fmt.Sprintf("%d more records like the %d before are not listed", n-MaxListed, MaxListed)
			out = append(out, v)
		}
	}
	return out
}
