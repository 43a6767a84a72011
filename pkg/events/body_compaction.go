package events

// Region names a run of surface nodes by the sequences of its first and last node, both included. The order is
// the surface's: Start may be numerically larger than End.
type Region struct{ Start, End uint64 }

func (r *Region) fields(w *wire) {
	w.begin("region")
	w.uint("start", &r.Start)
	w.uint("end", &r.End)
	w.close()
}

// compactionID handles the id under which a compaction's events belong together.
func (w *wire) compactionID(id *string) {
	w.str("compactionId", id)
	if w.err == nil && *id == "" {
		w.fail(ErrInvalid, "a compaction needs an id")
	}
}

// CompactionStart opens a compaction.
type CompactionStart struct {
	CompactionID string           // not empty
	Turn         int64            // 0: outside of any turn
	Reason       CompactionReason // empty: not known
	Claim        Claim            // of the input that asked for it
}

// CompactionReason says what called for a compaction.
type CompactionReason string

// The reasons of a compaction.
const (
	CompactionPressure CompactionReason = "pressure" // the next request would nearly fill the context window
	CompactionCommand  CompactionReason = "command"  // an input asked for it
	CompactionOverflow CompactionReason = "overflow" // the provider refused a request as too long
)

func (r CompactionReason) valid() bool {
	return r == CompactionPressure || r == CompactionCommand || r == CompactionOverflow
}

// Type returns [TypeCompactionStart].
func (*CompactionStart) Type() Type { return TypeCompactionStart }

func (b *CompactionStart) fields(w *wire) {
	w.compactionID(&b.CompactionID)
	w.optInt("turn", &b.Turn)
	if w.optional("reason", b.Reason != "") {
		enum(w, "reason", &b.Reason)
	}
	b.Claim.fields(w)
}

// CompactionSummary records the summary that replaces a region. It ends the compaction's model call, cites its chunk
// events, and its summary is what they add up to.
type CompactionSummary struct {
	CompactionID   string
	Region         Region
	Shadowed       []uint64 // the nodes of the region, in surface order
	ShadowedTokens int64    // estimated
	Summary        []Block  // text
	Provider       string
	Model          string
	MaxTokens      int64
	Usage          Usage
	UsageReported  bool
}

// Type returns [TypeCompactionSummary].
func (*CompactionSummary) Type() Type { return TypeCompactionSummary }

func (b *CompactionSummary) fields(w *wire) {
	w.compactionID(&b.CompactionID)
	b.Region.fields(w)
	list(w, "shadowed", &b.Shadowed, seqElem)
	w.int("shadowedTokens", &b.ShadowedTokens)
	list(w, "summary", &b.Summary, textBlockFields)
	w.str("provider", &b.Provider)
	w.str("model", &b.Model)
	w.optInt("maxTokens", &b.MaxTokens)
	w.optUsage(&b.UsageReported, &b.Usage)
}

// CompactionOutcome says how a compaction ended.
type CompactionOutcome string

// The outcomes of a compaction.
const (
	CompactionCompleted   CompactionOutcome = "completed"
	CompactionFailed      CompactionOutcome = "failed"
	CompactionNoProgress  CompactionOutcome = "no-progress"
	CompactionInterrupted CompactionOutcome = "interrupted"
)

func (o CompactionOutcome) valid() bool {
	switch o {
	case CompactionCompleted, CompactionFailed, CompactionNoProgress, CompactionInterrupted:
		return true
	}
	return false
}

// CompactionEnd closes a compaction.
type CompactionEnd struct {
	CompactionID string
	Turn         int64
	Outcome      CompactionOutcome
	Error        string
}

// Type returns [TypeCompactionEnd].
func (*CompactionEnd) Type() Type { return TypeCompactionEnd }

func (b *CompactionEnd) fields(w *wire) {
	w.compactionID(&b.CompactionID)
	w.optInt("turn", &b.Turn)
	enum(w, "outcome", &b.Outcome)
	w.optStr("error", &b.Error)
}

// CompactionPrune announces that the next event shortens one tool result.
type CompactionPrune struct {
	Region         Region
	Shadowed       []uint64
	ShadowedTokens int64
}

// Type returns [TypeCompactionPrune].
func (*CompactionPrune) Type() Type { return TypeCompactionPrune }

func (b *CompactionPrune) fields(w *wire) {
	b.Region.fields(w)
	list(w, "shadowed", &b.Shadowed, seqElem)
	w.int("shadowedTokens", &b.ShadowedTokens)
}
