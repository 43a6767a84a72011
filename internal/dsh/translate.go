package dsh

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/oklog/ulid/v2"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

const (
	rowHeader          = "session"
	rowTextChunks      = "text-chunks"
	rowReasoningChunks = "reasoning-chunks"
	rowToolCallChunks  = "tool-call-chunks"
)

// worker is the name under which a translated log is claimed.
const worker = "dsh"

// Request is one request of the conversation that the reference system dispatched.
type Request struct {
	Turn, Step, Attempt int64      // turn and step as the reference system numbers them; attempts count from 1 in each step
	FirstChunk          uint64     // the reference system's sequence of the attempt's first chunk
	Body                codec.Body // as our log has it: its digest is that of the llm/stream

	renamed []renaming
}

// Bytes returns the exact body that the reference system sent. It is Body's, but for the ids of tool calls that were
// empty, or not unique in their answer: our log has others there.
func (r *Request) Bytes() []byte { return undo(r.Body.Bytes(), r.renamed) }

// Session is a translated log.
type Session struct {
	ID       events.ID
	Events   []events.Event // a complete log of ours: it folds
	Payloads [][]byte       // their canonical payloads
	Requests []Request      // in dispatch order
	Objects  []Object       // what the events name, each once, in the order in which they come into use
	Missing  []objects.Ref  // images that the events name and of which nobody has the bytes; no request shows them
	Rescaled int            // images that were made smaller anew: the requests with them are not those that were sent
}

// Object is an object that events of a translated log name.
type Object struct {
	Ref  objects.Ref
	Data []byte
}

// Config is what a translation needs beside the log. The zero value is good for a log without images.
type Config struct {
	Session     events.ID // the session's id; empty: one that follows from the log
	InlineMax   int       // the longest text that stands in an event, in bytes; longer ones become objects; 0: no limit
	Uploads     fs.FS     // the recorded uploads of images, see [Config.Translate]; nil: none were recorded
	Attachments fs.FS     // bytes of images, see [Config.Translate]; nil: none
	TextModels  []string  // models that take text only
	ImageModels []string  // models that take images
	Rescale     bool      // make an image smaller when nobody has the bytes that were sent
}

// Translate is [Config.Translate] without anything beside the log.
func Translate(r io.Reader) (*Session, error) { return new(Config).Translate(r) }

// Translate reads a session log of the reference system, raw or as zstd frames, and returns it as a log of ours. Each
// attempt's first chunk is preceded by the llm/stream that our loop would have recorded. Nothing is returned of a log
// that does not fold. Errors about the file's contents wrap [ErrCorrupt] and name the line.
//
// How images were shown is not in such a log. Uploads holds the requests with which the reference system gave images to
// the provider, NNN.request.bin in order, and the answers, NNN.response.json; Attachments holds images, as DIGEST.EXT as
// they came and as DIGEST.sent.EXT as they were sent. What can still not be told is an error that wraps [ErrImages]; so
// is a log with images that cannot be read twice because r is no [io.Seeker].
func (c *Config) Translate(r io.Reader) (*Session, error) {
	t, err := c.pass(r, nil)
	if err != nil {
		return nil, err
	}
	if len(t.album) == 0 {
		return t.out, nil
	}
	again, ok := r.(io.Seeker)
	if !ok {
		return nil, fmt.Errorf("%w, and its log is read twice: give a file that can be", ErrImages)
	}
	p, err := c.plan(t)
	if err != nil {
		return nil, err
	}
	if _, err := again.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the log again: %w", err)
	}
	if t, err = c.pass(r, p); err != nil {
		return nil, err
	}
	t.out.Rescaled = p.rescaled
	return t.out, nil
}

// pass translates the log. Without a plan images are shown as placeholders, and the translator tells which there are and
// which calls show them.
func (c *Config) pass(r io.Reader, p *plan) (*translator, error) {
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		return nil, err
	}
	t := &translator{
		cfg: *c, plan: p, builder: builder, seqs: make(map[uint64]uint64), out: new(Session), pictured: make(map[uint64][]objects.Digest),
		listed: make(map[objects.Digest]bool),
	}
	if p != nil {
		t.set = p.set
	}
	line := 0
	for n, re := range rows(r) {
		line, t.line = n, n
		if re.err != nil {
			return nil, re.err
		}
		if err := t.row(&re.row); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrCorrupt, n, err)
		}
	}
	if t.state == nil {
		return nil, fmt.Errorf("%w: no session header in %d lines: is it a session log of the reference system?", ErrCorrupt, line)
	}
	if err := t.end(); err != nil {
		return nil, fmt.Errorf("%w: behind line %d: %w", ErrCorrupt, line, err)
	}
	return t, nil
}

type translator struct {
	cfg     Config
	plan    *plan // nil in the first pass
	line    int
	state   *fold.State
	builder codec.Builder
	out     *Session
	seqs    map[uint64]uint64 // the reference system's sequences to ours, where ours has an event for them; looked up only
	time    int64
	next    uint64 // the reference system's next sequence

	call    *modelCall // the open one, nil when there is none
	tools   []stepTool // of the step's answer
	renamed []renaming

	set    objects.Set             // the bytes that requests are built from
	listed map[objects.Digest]bool // those in out.Objects or out.Missing; looked up only

	album    []attachment                // the images, each once, in the order of the log
	pictured map[uint64][]objects.Digest // our sequences to the images of the event there; looked up only
	pictures []objects.Digest            // of the message that is being translated
	process  int                         // how many processes the log has seen end
	calls    []imageCall                 // those that show images
}

// id derives a ULID from the log, so that a log always translates to the same events.
func id(ms int64, parts ...string) events.ID {
	h := sha256.New()
	for _, p := range parts {
		_, _ = io.WriteString(h, p) // a hash never fails
		_, _ = h.Write([]byte{0})
	}
	var u ulid.ULID
	copy(u[6:], h.Sum(nil))
	_ = u.SetTime(uint64(max(ms, 0)) & ulid.MaxTime()) // masked: it cannot be too large
	return events.ID(u.String())
}

// errEncode is wrapped when an event of ours cannot be made of what the reference system recorded.
var errEncode = errors.New("it has no place in our log")

// append adds an event to the log and folds it.
func (t *translator) append(body events.Body, surface events.SurfaceOp, sources []uint64) (uint64, error) {
	seq := t.state.Seq() + 1
	e := events.Event{
		Seq: seq, ID: id(t.time, string(t.state.ID()), string(binary.BigEndian.AppendUint64(nil, seq))), Time: t.time,
		Prev: t.state.Head(), Body: body, Surface: surface, Sources: sources,
	}
	_, e.Ignorable = body.(*events.Unknown)
	e.Ignorable = e.Ignorable || body.Type() == events.TypeSessionTitle
	payload, err := events.Encode(&e)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errEncode, err)
	}
	if err := t.state.Apply(&e); err != nil {
		return 0, err
	}
	t.out.Events = append(t.out.Events, e)
	t.out.Payloads = append(t.out.Payloads, payload)
	return seq, nil
}

// object keeps bytes that an event names.
func (t *translator) object(mediaType string, data []byte) (objects.Ref, error) {
	ref, err := objects.NewRef(mediaType, data)
	if err != nil {
		return ref, err
	}
	if err := t.set.Add(ref, data); err != nil {
		return ref, err
	}
	t.use(ref)
	return ref, nil
}

// use lists an object that an event names.
func (t *translator) use(ref objects.Ref) {
	if t.listed[ref.Digest] {
		return
	}
	t.listed[ref.Digest] = true
	if data, ok := t.set.Bytes(ref.Digest); ok {
		t.out.Objects = append(t.out.Objects, Object{Ref: ref, Data: data})
	} else {
		t.out.Missing = append(t.out.Missing, ref)
	}
}

// long reports whether a text of n bytes becomes an object.
func (t *translator) long(n int) bool { return t.cfg.InlineMax > 0 && n > t.cfg.InlineMax }

// message translates a message; one without an id gets one.
func (t *translator) message(r *row, m *message, role events.Role) (events.Message, error) {
	t.pictures = t.pictures[:0]
	content, err := t.content(m.Content, role)
	if err != nil {
		return events.Message{}, err
	}
	em, err := m.event(role, content)
	if em.ID == "" {
		em.ID = string(id(t.time, string(t.out.ID), string(binary.BigEndian.AppendUint64(nil, r.Seq))))
	}
	return em, err
}

func (t *translator) plain(body events.Body) (uint64, error) {
	return t.append(body, events.SurfaceOp{}, nil)
}

func (t *translator) claim(reason events.ClaimReason) error {
	_, err := t.plain(&events.LoopClaimed{
		Worker: worker, Instance: id(t.time, worker, string(binary.BigEndian.AppendUint64(nil, t.state.Seq()))), Reason: reason,
	})
	return err
}

func (t *translator) start(r *row) error {
	if t.state != nil {
		return errors.New("a second session header")
	}
	if r.Version != 0 {
		return fmt.Errorf("log version %v; only 0 is known", r.Version)
	}
	t.time = count(r.CreatedAt, new(bool))
	if t.out.ID = t.cfg.Session; t.out.ID == "" {
		t.out.ID = id(t.time, string(r.ID))
	}
	t.state = fold.New(t.out.ID)
	_, err := t.plain(&events.SessionCreated{
		Session: t.out.ID,
		Labels:  []events.Label{{Name: "dsh.session", Value: string(r.ID)}}, Cwd: string(r.Cwd), DelegationDepth: count(r.DelegationDepth, new(bool)),
	})
	if err != nil {
		return err
	}
	if err := t.claim(events.ClaimCreated); err != nil {
		return err
	}
	_, err = t.keep(rowHeader, r.raw, nil)
	return err
}

// end brings the log to the state in which whoever goes on finds what the reference system left open: what came of an
// answer, and the tools that may have begun.
func (t *translator) end() error {
	if t.call != nil {
		_, err := t.record(t.call.chunks)
		return err
	}
	last := -1
	for i := range t.tools {
		if t.tools[i].started && !t.tools[i].done {
			last = i
		}
	}
	for i := range t.tools[:last+1] { // those before it may have begun too, as far as our log could tell
		t.tools[i].started = true
	}
	_, err := t.startTools()
	return err
}

// row translates one row.
func (t *translator) row(r *row) error {
	if r.Type == rowHeader {
		return t.start(r)
	}
	if t.state == nil {
		return fmt.Errorf("%q before the session header", clip(string(r.Type)))
	}
	width := uint64(1)
	isPacked := r.Type == rowTextChunks || r.Type == rowReasoningChunks || r.Type == rowToolCallChunks
	var p packed
	if isPacked {
		if err := unmarshal(r.Data, &p); err != nil {
			return err
		}
		r.Seq, r.Time = r.Seq0, r.Time0
		width = uint64(max(len(p.Texts), len(p.Args)))
	}
	if r.Seq != t.next {
		return fmt.Errorf("sequence %d where %d belongs: rows are missing, doubled or moved", r.Seq, t.next)
	}
	t.time = max(t.time, count(r.Time, new(bool)))
	var seq uint64
	var err error
	if isPacked {
		err = t.chunk(r, p.turnStep, p.chunk(r.Type))
	} else {
		seq, err = t.event(r)
	}
	if err != nil {
		return fmt.Errorf("event %d (%s): %w", r.Seq, clip(string(r.Type)), err)
	}
	if seq != 0 {
		t.seqs[r.Seq] = seq
	}
	t.next = r.Seq + width
	return nil
}

// clip shortens a name for an error's text.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// sources translates the sequences that an event cites, each once, without those that have no event in our log.
func (t *translator) sources(in []uint64) []uint64 {
	var out []uint64
	seen := make(map[uint64]bool, len(in))
	for _, s := range in {
		if seq := t.seqs[s]; seq != 0 && !seen[seq] {
			seen[seq] = true
			out = append(out, seq)
		}
	}
	return out
}

// isAppend reports whether a surface operation appends, as an absent one does.
func isAppend(raw []byte) bool { return len(raw) == 0 || bytes.Equal(raw, []byte(`"append"`)) }

// surface translates a surface operation that is no append.
func (t *translator) surface(raw []byte) (events.SurfaceOp, error) {
	var op struct {
		Op    text   `json:"op"`
		Start uint64 `json:"start"`
		End   uint64 `json:"end"`
	}
	if err := unmarshal(raw, &op); err != nil {
		return events.SurfaceOp{}, err
	}
	start, end := t.seqs[op.Start], t.seqs[op.End]
	if op.Op != "replace" || start == 0 || end == 0 {
		return events.SurfaceOp{}, fmt.Errorf("surface operation %q over events %d to %d", clip(string(op.Op)), op.Start, op.End)
	}
	return events.ReplaceOp(start, end), nil
}
