// Package tamper_test changes what an auditor is given, in every way that it knows, and wants each change to be found by the
// rule that is there for it. It takes no server: logs, objects, verdicts and receipts are in memory.
package tamper_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/tlog"
)

// finding is a result with its rule.
type finding struct {
	result audit.Result
	rule   string
}

func (f finding) String() string { return strings.TrimSpace(string(f.result) + " " + f.rule) }

// found are findings of which one or more are wanted.
type found []finding

func (f found) has(x finding) bool { return slices.Contains(f, x) }

// mutation is one change of what an auditor is given.
type mutation struct {
	what  string // for the test's messages
	check audit.LogCheck
	// file is in the place of check: a bundle, and whom its auditor trusts.
	file    []byte
	options bundle.Options

	want found // one of these must be found
	also found // what follows from it, and may be found beside
	// maybe: it may be that nothing is found, since what came out is another log that is as good as the one before, and
	// nobody has signed that one. With nothing wanted, nothing can be found. docs/format/verdicts.md says so.
	maybe bool
	// verify is in the place of all that, for what is refused before a log is looked at, or told apart in the report. It
	// returns how the change was noticed, and an error when it was not.
	verify func(t *testing.T, report *audit.Report) (string, error)
	// refused is how the change was noticed where there is nothing to check any more.
	refused string
	err     error
}

// kind is a way to change something.
type kind struct {
	name string
	// share is how many mutations of it are made for one of the rarest.
	share int
	// make makes a mutation of the session at random; ok is false when the session, or the dice, do not have it.
	make func(d *dice, b *base) (m mutation, ok bool)
}

// dice are where everything random comes from.
type dice struct {
	*rand.Rand

	bases []*base // to replay from
	keys  keys
	log   *tlog.Signer
}

// index returns an index of something that has n.
func (d *dice) index(n int) int { return d.IntN(n) }

func kinds() []kind {
	return slices.Concat(logKinds(), editKinds(), workerKinds(), objectKinds(), verdictKinds(), receiptKinds(), bundleKinds())
}

// TestTamper makes at least 12,000 mutations, or as many as REFOLD_TAMPER says, and wants each to be noticed by a rule that is
// there for it, and nothing else to be found. REFOLD_TAMPER_SEED makes others. A short run makes a tenth.
func TestTamper(t *testing.T) {
	n, seed := number(t, "REFOLD_TAMPER", short(12_000)), number(t, "REFOLD_TAMPER_SEED", 1)
	k := newKeys(t)
	d := &dice{Rand: rand.New(rand.NewPCG(uint64(seed), 0)), bases: bases(t, k, 12), keys: k, log: newLog(t)}
	for _, b := range d.bases {
		packed := b.bundle(d)
		if report, err := audited(t.Context(), packed.file, packed.options); err != nil || !report.AllMatch() {
			t.Fatalf("%s: the untouched bundle: %v, %v", b.Name, err, report)
		}
	}
	shares := 0
	for _, kind := range kinds() {
		shares += kind.share
	}
	table := make(map[string]map[string]int)
	noticed, unnoticed := 0, 0
	for _, kind := range kinds() {
		row := make(map[string]int)
		table[kind.name] = row
		for made, tries := 0, 0; made < (n*kind.share+shares-1)/shares; tries++ {
			if tries > 1000 && made == 0 {
				t.Fatalf("%s: no session has it", kind.name)
			}
			b := d.bases[d.index(len(d.bases))]
			m, ok := kind.make(d, b)
			if !ok {
				continue
			}
			made++
			how, err := m.judge(t)
			switch {
			case err != nil:
				t.Errorf("%s: %s: %.600s: %v", kind.name, b.Name, m.what, err)
			case how == "":
				unnoticed++
				row["nothing, as nothing can be"]++
			default:
				noticed++
				row[how]++
			}
			if t.Failed() && made > 20 {
				break
			}
		}
	}
	t.Logf("%d sessions, %d mutations noticed by their rules, %d that cannot be noticed and were not\n%s", len(d.bases), noticed, unnoticed, tabled(table))
	if n >= 12_000 && noticed < 10_000 && !t.Failed() {
		t.Errorf("%d mutations were noticed", noticed)
	}
}

// judge checks the mutated and returns by what it was noticed; "" when it rightly was not.
func (m *mutation) judge(t *testing.T) (how string, err error) {
	t.Helper()
	if m.refused != "" || m.err != nil {
		return m.refused, m.err
	}
	var report *audit.Report
	if m.file != nil {
		report, err = audited(t.Context(), m.file, m.options)
	} else {
		report, err = audit.CheckLog(t.Context(), m.check)
	}
	if err != nil {
		return "", err
	}
	if m.verify != nil {
		return m.verify(t, report)
	}
	findings := findingsOf(report)
	if m.maybe && len(findings) == 0 {
		return "", nil
	}
	var by *finding
	for i, f := range findings {
		switch {
		case m.want.has(f):
			if by == nil {
				by = &findings[i]
			}
		case !m.also.has(f):
			return "", fmt.Errorf("found %s, want one of %v, and beside it %v", f, m.want, m.also)
		}
	}
	if by == nil {
		return "", fmt.Errorf("not noticed: want one of %v, found %v", m.want, findings)
	}
	return by.String(), nil
}

// findingsOf returns what a report found, each once, in order. What stands behind the event that broke a log is left out.
func findingsOf(report *audit.Report) found {
	var out found
	for i := range report.Verdicts {
		v := &report.Verdicts[i]
		f := finding{v.Result, v.Rule}
		if v.Result == audit.Match || out.has(f) {
			continue
		}
		if v.Rule == audit.RuleEarlier && slices.ContainsFunc(out, func(f finding) bool { return f.result == v.Result }) {
			continue
		}
		out = append(out, f)
	}
	return out
}

// short is what a short run makes of n.
func short(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// number returns the number in an environment variable, n when there is none.
func number(t *testing.T, name string, n int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return n
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number from 1 on", name, s)
	}
	return n
}

// tabled words how many mutations of each kind were noticed by what.
func tabled(table map[string]map[string]int) string {
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(table)) {
		total := 0
		for _, n := range table[kind] {
			total += n
		}
		fmt.Fprintf(&b, "%6d %s\n", total, kind)
		for _, how := range slices.Sorted(maps.Keys(table[kind])) {
			fmt.Fprintf(&b, "%16d %s\n", table[kind][how], how)
		}
	}
	return b.String()
}

// broken, invalid and the like are findings by their rules.

func broken(rules ...string) found  { return of(audit.BrokenChain, rules...) }
func invalid(rules ...string) found { return of(audit.InvalidLog, rules...) }

func of(result audit.Result, rules ...string) found {
	out := make(found, 0, len(rules))
	for _, rule := range rules {
		out = append(out, finding{result, rule})
	}
	return out
}

func signature() found { return of(audit.CouldNotCheck, audit.RuleSignature) }
