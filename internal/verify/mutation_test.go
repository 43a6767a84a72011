package verify_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// mutation is one change of a log.
type mutation struct {
	name     string
	messages []eventlog.Message
	relink   int // the index of the event behind which everything is linked anew, when relinked is set
	// tail: nothing but the end of the log is touched, where no later event links back. Without signed verdicts that
	// cannot be noticed.
	tail bool
	// relinked: the whole log behind the change was written anew to fit, which only signed verdicts show.
	relinked bool
	short    bool // the log itself states another length than the recording's
}

// mutations yields every mutation of the recording.
func (r *recording) mutations(yield func(mutation) bool) {
	n := len(r.messages)
	for i := range n {
		for _, m := range []mutation{r.deleted(i), r.closedUp(i), r.duplicated(i), r.inserted(i), r.cut(i)} {
			if !yield(m) {
				return
			}
		}
		if i+1 < n && (!yield(r.swapped(i)) || !yield(r.exchanged(i))) {
			return
		}
		for edit := range edits(r.messages[i].Payload) {
			if bytes.Equal(edit, r.messages[i].Payload) {
				panic("an edit that changes nothing")
			}
			for _, m := range r.edited(i, edit) {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// renumbered gives every message the sequence of its place.
func renumbered(messages []eventlog.Message) []eventlog.Message {
	for i := range messages {
		messages[i].Seq = uint64(i + 1)
	}
	return messages
}

func (r *recording) deleted(i int) mutation {
	return mutation{name: fmt.Sprintf("delete %d", i+1), messages: slices.Delete(slices.Clone(r.messages), i, i+1)}
}

func (r *recording) closedUp(i int) mutation {
	m := r.deleted(i)
	m.name = fmt.Sprintf("delete %d and close up", i+1)
	m.messages, m.short, m.tail = renumbered(m.messages), true, i == len(r.messages)-1
	return m
}

func (r *recording) cut(i int) mutation {
	return mutation{name: fmt.Sprintf("cut behind %d", i), messages: r.messages[:i], short: true, tail: true}
}

func (r *recording) duplicated(i int) mutation {
	return mutation{name: fmt.Sprintf("duplicate %d", i+1), messages: slices.Insert(slices.Clone(r.messages), i, r.messages[i])}
}

func (r *recording) inserted(i int) mutation {
	m := r.duplicated(i)
	m.name = fmt.Sprintf("duplicate %d and renumber", i+1)
	m.messages = renumbered(m.messages)
	return m
}

func (r *recording) swapped(i int) mutation {
	messages := slices.Clone(r.messages)
	messages[i], messages[i+1] = messages[i+1], messages[i]
	return mutation{name: fmt.Sprintf("swap %d", i+1), messages: messages}
}

func (r *recording) exchanged(i int) mutation {
	m := r.swapped(i)
	m.name = fmt.Sprintf("exchange %d", i+1)
	m.messages = renumbered(m.messages)
	return m
}

// edited puts another payload in the place of message i: as it is, with a message that says the same as the payload, and
// with everything behind it linked anew.
func (r *recording) edited(i int, payload []byte) []mutation {
	last := i == len(r.messages)-1
	messages := slices.Clone(r.messages)
	messages[i].Payload = payload
	out := []mutation{{name: fmt.Sprintf("edit %d: %.400s", i+1, payload), messages: messages, tail: last}}
	e, err := events.Decode(payload)
	if err != nil {
		return out
	}
	if e.ID != r.messages[i].ID || e.Type() != r.messages[i].Type {
		messages = slices.Clone(messages)
		messages[i].ID, messages[i].Type = e.ID, e.Type()
		out = append(out, mutation{name: "with its message, " + out[0].name, messages: messages, tail: last})
	}
	return append(out, mutation{name: "relinked, " + out[0].name, messages: messages, relinked: true, relink: i})
}

// link links everything behind event i anew, if the mutation asks for it.
func (m *mutation) link() {
	if !m.relinked {
		return
	}
	m.messages = slices.Clone(m.messages)
	var prev events.Hash
	for i := m.relink; i < len(m.messages); i++ {
		e, err := events.Decode(m.messages[i].Payload)
		if err != nil {
			panic(err)
		}
		if i > m.relink {
			e.Prev = prev
			if m.messages[i].Payload, err = events.Encode(&e); err != nil {
				panic(err)
			}
		}
		prev, _ = e.Hash()
	}
}

// edits yields the payload with each JSON scalar replaced by another one of its kind.
func edits(payload []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for i := 0; i < len(payload); i++ {
			start := i
			switch c := payload[i]; {
			case c == '"':
				for i++; payload[i] != '"'; i++ {
					if payload[i] == '\\' {
						i++
					}
				}
				if i+1 < len(payload) && payload[i+1] == ':' {
					continue
				}
			case c == '-' || c >= '0' && c <= '9':
				for i+1 < len(payload) && bytes.IndexByte([]byte("0123456789+-.eE"), payload[i+1]) >= 0 {
					i++
				}
			case c >= 'a' && c <= 'z':
				for i+1 < len(payload) && payload[i+1] >= 'a' && payload[i+1] <= 'z' {
					i++
				}
			default:
				continue
			}
			for _, other := range alternatives(payload[start : i+1]) {
				if !yield(slices.Concat(payload[:start], other, payload[i+1:])) {
					return
				}
			}
		}
	}
}

// alternatives returns plausible values other than the scalar.
func alternatives(scalar []byte) [][]byte {
	switch string(scalar) {
	case "true":
		return [][]byte{[]byte("false")}
	case "false":
		return [][]byte{[]byte("true")}
	case "null":
		return [][]byte{[]byte("0")}
	}
	if scalar[0] != '"' {
		n, err := strconv.ParseInt(string(scalar), 10, 64)
		if err != nil {
			return [][]byte{[]byte("1")}
		}
		if n == 0 {
			return [][]byte{[]byte("1")}
		}
		return [][]byte{strconv.AppendInt(nil, n+1, 10), strconv.AppendInt(nil, n-1, 10)}
	}
	inner := scalar[1 : len(scalar)-1]
	longer := slices.Concat([]byte(`"`), inner, []byte(`x"`))
	if len(inner) == 0 {
		return [][]byte{longer}
	}
	if len(inner) == 26 || len(inner) == 64 { // an ID or a digest
		other := slices.Clone(scalar)
		if other[len(other)-2]++; other[len(other)-2] > '9' {
			other[len(other)-2] = '0'
		}
		return [][]byte{other}
	}
	return [][]byte{longer, []byte(`""`)}
}

// TestMutations changes recorded logs in every way that it knows and wants each change to be noticed.
func TestMutations(t *testing.T) {
	key := newKey(t)
	_, fork := forked()
	recordings := append([]recording{recordLog("sample", sample()), recordLog("whole", whole()), recordLog("fork", fork)}, corpus(t)...)
	total, withoutSigned, undetected := 0, 0, 0
	for i, r := range recordings {
		// Every mutation of the first two, and as many of each other one as time allows, evenly spread.
		stride := 1
		if most := 50; i > 1 {
			all := 0
			for range r.mutations {
				all++
			}
			stride = all/most + 1
		}
		signed := r.signed(t, key)
		lastSigned := uint64(0)
		for _, v := range signed {
			lastSigned = max(lastSigned, v.Seq)
		}
		n := uint64(len(r.messages))
		nth := 0
		for m := range r.mutations {
			if nth++; nth%stride != 0 {
				continue
			}
			m.link()
			stated := func(c *audit.LogCheck) {
				if !m.short {
					c.Last = max(n, c.Last)
				}
			}
			total++
			report := r.check(t, m.messages, func(c *audit.LogCheck) {
				stated(c)
				c.Prior, c.Trusted = signed, []string{key.Public()}
			})
			// What comes behind the last signed event of a log that just stops is signed with the next turn.
			behind := m.tail && lastSigned < n && (!m.short || uint64(len(m.messages)) >= lastSigned)
			if report.AllMatch() && !behind && (!m.relinked || !sameUpTo(m.messages, r.messages, lastSigned)) {
				t.Errorf("%s: %.500s: not noticed", r.name, m.name)
			}
			if m.relinked {
				continue
			}
			withoutSigned++
			if r.check(t, m.messages, stated).AllMatch() {
				undetected++
				if !m.tail {
					t.Errorf("%s: %.500s: not noticed without signed verdicts", r.name, m.name)
				}
			}
		}
		total += r.damageObjects(t)
	}
	t.Logf("%d logs, %d mutations, all noticed; without signed verdicts %d of %d are not, all of them at the very tail",
		len(recordings), total, undetected, withoutSigned)
	if total < 1000 {
		t.Errorf("%d mutations, want at least 1,000", total)
	}
}

// sameUpTo reports whether the logs are the same up to the sequence.
func sameUpTo(a, b []eventlog.Message, seq uint64) bool {
	return slices.EqualFunc(a[:seq], b[:seq], func(a, b eventlog.Message) bool { return bytes.Equal(a.Payload, b.Payload) })
}

// damageObjects damages each object in several ways, which every check must notice by its name.
func (r *recording) damageObjects(t *testing.T) int {
	t.Helper()
	damaged := 0
	for _, ref := range r.refs {
		right, _ := r.source.Bytes(ref.Digest)
		flipped := slices.Clone(right)
		flipped[len(flipped)/2] ^= 1
		for want, s := range map[audit.Result][]*store{
			audit.MissingObject: {{missing: map[objects.Digest]bool{ref.Digest: true}}},
			audit.CorruptObject: {
				{altered: map[objects.Digest][]byte{ref.Digest: flipped}},
				{altered: map[objects.Digest][]byte{ref.Digest: right[1:]}},
				{altered: map[objects.Digest][]byte{ref.Digest: append(slices.Clone(right), 0)}},
				{altered: map[objects.Digest][]byte{ref.Digest: {}}},
			},
			audit.CouldNotCheck: {{fail: objects.ErrUnavailable}},
		} {
			for _, s := range s {
				s.source = r.source
				for _, cold := range []bool{false, true} {
					damaged++
					report := r.check(t, r.messages, func(c *audit.LogCheck) { c.Objects, c.Cold = audit.FromStore(s), cold })
					results := map[audit.Result]int{}
					for _, v := range report.Verdicts {
						results[v.Result]++
					}
					delete(results, audit.Match)
					if len(results) != 1 || results[want] == 0 {
						t.Errorf("%s: object %s: results %v, want %s", r.name, ref, slices.Collect(maps.Keys(results)), want)
					}
				}
			}
		}
	}
	return damaged
}
