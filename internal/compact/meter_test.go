package compact_test

import (
	"errors"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMeterWithoutAnchor(t *testing.T) {
	var m compact.Meter
	if got := m.Estimate(); got != 0 {
		t.Errorf("an empty log is estimated at %d", got)
	}
	m.SetHeader(header(words(96)))
	m.Append(user(1, words(10)))
	m.Append(assistant(2, words(20)))
	if got, want := m.Estimate(), int64(100+14+24); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}

// anchored is a surface of 100 + 54 + 46 estimated tokens that the provider counted as 300.
func anchored(t *testing.T) *compact.Meter {
	t.Helper()
	m := compact.NewMeter([]compact.Node{user(1, words(50)), assistant(2, words(42))}, header(words(96)), compact.Anchor{})
	usage := events.Usage{InputTokens: 50, CacheReported: true, CacheReadTokens: 110, CacheWriteTokens: 40, CacheWrite1hTokens: 30, OutputTokens: 70}
	if !m.Anchor(usage, 2) {
		t.Fatal("the anchor was refused")
	}
	return m
}

func TestMeterDifference(t *testing.T) {
	tests := []struct {
		name   string
		change func(m *compact.Meter)
		want   int64
	}{
		{"nothing changed", func(*compact.Meter) {}, 300},
		{"appended", func(m *compact.Meter) { m.Append(user(3, words(6))) }, 310},
		{"a node without a message", func(m *compact.Meter) { m.Append(compact.Node{Seq: 3}) }, 300},
		{"replaced by a smaller one", func(m *compact.Meter) { m.Replace(0, 1, user(3, words(6))) }, 300 - 66},
		{"replaced by a larger one", func(m *compact.Meter) { m.Replace(0, 1, user(3, words(60))) }, 300 + 10},
		{"all replaced", func(m *compact.Meter) { m.Replace(0, 2, user(3, words(6))) }, 150 + 15},
		{"appended and replaced", func(m *compact.Meter) {
			m.Append(user(3, words(100)))
			m.Replace(2, 3, user(4, words(6)))
		}, 310},
		{"as much replaced as appended", func(m *compact.Meter) {
			m.Append(user(3, words(50)))
			m.Replace(0, 1, user(4, ""))
		}, 300 + 54 - 50},
		{"the same header again", func(m *compact.Meter) { m.SetHeader(header(words(96))) }, 300},
		{"a smaller header", func(m *compact.Meter) { m.SetHeader(header(words(46))) }, 300 - 75},
		{"a larger header", func(m *compact.Meter) { m.SetHeader(header(words(106))) }, 310},
		{"no header", func(m *compact.Meter) { m.SetHeader(nil) }, 150},
		{"another header and back", func(m *compact.Meter) {
			m.SetHeader(nil)
			m.SetHeader(header(words(96)))
		}, 300},
		{"a later anchor", func(m *compact.Meter) {
			m.Append(user(3, words(6)))
			m.Append(assistant(4, words(6)))
			m.Anchor(events.Usage{InputTokens: 500, OutputTokens: 20}, 4)
		}, 520},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := anchored(t)
			tt.change(m)
			if got := m.Estimate(); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// TestMeterRate: 200 estimated tokens that the provider counted as more or fewer.
func TestMeterRate(t *testing.T) {
	tests := []struct {
		name     string
		reported int64
		left     int64   // when 150 of the 200 are replaced by nothing, which takes 0
		tokens   []int64 // of the nodes of 150, 30 and 20
	}{
		{"as estimated", 200, 50, []int64{150, 30, 20}},
		{"fewer", 100, 25, []int64{150, 30, 20}},
		{"very few", 7, 2, []int64{150, 30, 20}},
		{"more", 300, 75, []int64{225, 45, 30}},
		{"twice as many", 400, 100, []int64{300, 60, 40}},
		{"a prompt of the provider's own", 10_400, 10_100, []int64{300, 60, 40}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := surface(user(1, words(146)), user(2, words(26)), assistant(3, words(16)))
			if !m.Anchor(events.Usage{InputTokens: tt.reported}, 3) {
				t.Fatal("the anchor was refused")
			}
			if got := m.Tokens(); !slices.Equal(got, tt.tokens) {
				t.Errorf("nodes take %v, want %v", got, tt.tokens)
			}
			m.Replace(0, 1, compact.Node{Seq: 4})
			if got := m.Estimate(); got != tt.left {
				t.Errorf("%d are left, want %d", got, tt.left)
			}
		})
	}
}

func TestAnchorTrust(t *testing.T) {
	const most = 1 << 50
	tests := []struct {
		name     string
		usage    events.Usage
		seq      uint64
		believed bool
	}{
		{"as estimated", events.Usage{InputTokens: 4100, OutputTokens: 10}, 2, true},
		{"another tokeniser", events.Usage{InputTokens: 9000}, 2, true},
		{"just enough", events.Usage{InputTokens: 128}, 2, true},
		{"just too little for a long history", events.Usage{InputTokens: 127}, 2, false},
		{"no input", events.Usage{OutputTokens: 5000}, 2, false},
		{"nothing", events.Usage{}, 2, false},
		{"all read from the cache", events.Usage{CacheReported: true, CacheReadTokens: 4100}, 2, true},
		{"negative", events.Usage{InputTokens: 4100, OutputTokens: -1}, 2, false},
		{"clamped", events.Usage{InputTokens: 4100, Clamped: true}, 2, false},
		{"a prompt of the provider's own", events.Usage{InputTokens: 100_000}, 2, true},
		{"more than there can be", events.Usage{InputTokens: 1_000_000}, 2, false},
		{"the largest count", events.Usage{InputTokens: most, CacheReported: true, CacheReadTokens: most, CacheWriteTokens: most, CacheWrite1hTokens: most, OutputTokens: most}, 2, false},
		{"beyond the largest count", events.Usage{InputTokens: most + 1}, 2, false},
		{"not the last node", events.Usage{InputTokens: 4100}, 1, false},
		{"not on the surface", events.Usage{InputTokens: 4100}, 3, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := surface(user(1, words(4096)), assistant(2, words(6)))
			if got := m.Anchor(tt.usage, tt.seq); got != tt.believed {
				t.Errorf("believed = %v, want %v", got, tt.believed)
			}
			want := int64(4110)
			if tt.believed {
				want = tt.usage.TotalInput() + tt.usage.OutputTokens
			}
			if got := m.Estimate(); got != want {
				t.Errorf("estimated %d, want %d", got, want)
			}
		})
	}
}

// TestAnchorKept: a report that is not believed leaves the anchor before it in force.
func TestAnchorKept(t *testing.T) {
	m := anchored(t)
	m.Append(user(3, words(6)))
	m.Append(assistant(4, words(16)))
	if m.Anchor(events.Usage{}, 4) {
		t.Fatal("an empty report was believed")
	}
	if got, want := m.Estimate(), int64(300+10+20); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	if got, want := m.Anchored(), (compact.Anchor{Seq: 2, Reported: 300, Estimated: 200}); got != want {
		t.Errorf("anchor %+v, want %+v", got, want)
	}
}

// TestAnchorHidden: an answer that shows nothing, such as one with reasoning alone that was cut off, does not come
// back in the next request.
func TestAnchorHidden(t *testing.T) {
	m := surface(user(1, words(50)), compact.Node{Seq: 2})
	if !m.Anchor(events.Usage{InputTokens: 60, OutputTokens: 9000}, 2) {
		t.Fatal("the anchor was refused")
	}
	if got := m.Estimate(); got != 60 {
		t.Errorf("got %d, want 60", got)
	}
}

// dumbMeter keeps everything and computes from scratch.
type dumbMeter struct {
	dumbRequest
	reported int64
	then     *dumbRequest // what the provider counted
}

type dumbRequest struct {
	nodes  []compact.Node
	header *events.Header
}

func (r *dumbRequest) tokens() int64 {
	n := compact.HeaderTokens(r.header)
	for _, node := range r.nodes {
		n += compact.MessageTokens(node.Message)
	}
	return n
}

func (d *dumbMeter) estimate() int64 {
	now := d.tokens()
	if d.then == nil {
		return now
	}
	then := d.then.tokens()
	if now >= then {
		return d.reported + now - then
	}
	rate := big.NewRat(d.reported, then)
	if two := big.NewRat(2, 1); rate.Cmp(two) > 0 {
		rate = two
	}
	off := rate.Mul(rate, new(big.Rat).SetInt64(then-now))
	return d.reported - new(big.Int).Quo(off.Num(), off.Denom()).Int64()
}

// TestMeterProperty: a meter fed step by step agrees with one that computes everything from scratch, and with one
// built anew from its nodes and its anchor.
func TestMeterProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			m    compact.Meter
			dumb dumbMeter
			seq  uint64
		)
		draw := func() compact.Node {
			seq += rapid.Uint64Range(1, 3).Draw(t, "gap")
			if rapid.IntRange(0, 9).Draw(t, "blank") == 0 {
				return compact.Node{Seq: seq}
			}
			return user(seq, rapid.StringN(0, 200, -1).Draw(t, "text"))
		}
		push := func(*rapid.T) {
			n := draw()
			m.Append(n)
			dumb.nodes = append(dumb.nodes, n)
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": push,
			"replace": func(t *rapid.T) {
				if len(dumb.nodes) == 0 {
					t.Skip("nothing to replace")
				}
				lo := rapid.IntRange(0, len(dumb.nodes)-1).Draw(t, "lo")
				hi := rapid.IntRange(lo+1, len(dumb.nodes)).Draw(t, "hi")
				n := draw()
				m.Replace(lo, hi, n)
				dumb.nodes = slices.Concat(dumb.nodes[:lo], []compact.Node{n}, dumb.nodes[hi:])
			},
			"header": func(t *rapid.T) {
				dumb.header = header(words(rapid.IntRange(0, 50).Draw(t, "system")))
				m.SetHeader(dumb.header)
			},
			"anchor": func(t *rapid.T) {
				push(t)
				u := events.Usage{InputTokens: rapid.Int64Range(0, 1<<14).Draw(t, "input"), OutputTokens: rapid.Int64Range(0, 1<<10).Draw(t, "output")}
				if m.Anchor(u, seq) {
					dumb.reported = m.Anchored().Reported
					dumb.then = &dumbRequest{slices.Clone(dumb.nodes), dumb.header}
				}
			},
			"": func(t *rapid.T) {
				got := m.Estimate()
				if want := dumb.estimate(); got != want {
					t.Fatalf("estimated %d, from scratch %d", got, want)
				}
				if anew := compact.NewMeter(m.Nodes(), dumb.header, m.Anchored()).Estimate(); got != anew {
					t.Fatalf("estimated %d, built anew %d", got, anew)
				}
			},
		})
	})
}

func TestObserve(t *testing.T) {
	say := func(seq uint64, n compact.Node, op events.SurfaceOp) *events.Event {
		return &events.Event{Seq: seq, Surface: op, Body: &events.UserMessage{Message: *n.Message}}
	}
	answer := &events.AssistantMessage{Message: *assistant(0, words(42)).Message, UsageReported: true, Usage: events.Usage{InputTokens: 300, OutputTokens: 100}}
	cut := output(0, "c", "short")
	log := []*events.Event{
		{Seq: 1, Body: &events.TurnStart{Turn: 1}},
		say(2, user(0, words(50)), events.AppendOp()),
		{Seq: 3, Body: &events.RequestHeader{Header: *header(words(96))}},
		{Seq: 4, Surface: events.AppendOp(), Body: answer},
		{Seq: 5, Surface: events.AppendOp(), Body: &events.AssistantMessage{}},
		{Seq: 6, Surface: events.AppendOp(), Body: &events.ToolResult{Message: *output(0, "c", words(90)).Message}},
		{Seq: 7, Surface: events.ReplaceOp(6, 6), Body: &events.ToolResult{Message: *cut.Message}},
		say(8, summary(0, "notes"), events.ReplaceOp(2, 4)),
	}
	var m compact.Meter
	for _, e := range log {
		if err := m.Observe(e); err != nil {
			t.Fatal(err)
		}
	}
	var got []uint64
	for _, n := range m.Nodes() {
		got = append(got, n.Seq)
	}
	if want := []uint64{8, 5, 7}; !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
	nodes := m.Nodes()
	if nodes[1].Message != nil || !nodes[2].Pruned || nodes[0].Pruned {
		t.Errorf("nodes %+v", nodes)
	}
	left := 100 + compact.MessageTokens(summary(0, "notes").Message) + compact.MessageTokens(cut.Message)
	if got, want := m.Estimate(), 2*left; left > 200 || got != want { // counted as 400, estimated at 200
		t.Errorf("estimated %d, want %d", got, want)
	}
	if err := m.Observe(say(9, user(0, "x"), events.ReplaceOp(2, 4))); !errors.Is(err, compact.ErrSurface) {
		t.Errorf("a replacement of what is gone: %v", err)
	}
}
