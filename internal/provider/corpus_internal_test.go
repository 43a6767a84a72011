package provider

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/pkg/events"
)

// corpusDir returns the directory of the recorded sessions of the reference system, "" when there is none.
func corpusDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return dir
}

// attempt is what the reference system logged for one attempt.
type attempt struct {
	chunks []events.Chunk
	usage  string // its normalised usage, "" when none
	code   string // of its failure
}

// TestCorpus decodes every recorded answer and compares with what the reference system logged.
func TestCorpus(t *testing.T) {
	dir := corpusDir(t)
	if dir == "" {
		t.Log("no corpus: set REFOLD_CORPUS to compare with recorded sessions; nothing was compared")
		return
	}
	answers, err := filepath.Glob(filepath.Join(dir, "*", "responses", "*.sse"))
	if err != nil || len(answers) == 0 {
		t.Fatalf("the corpus has no answers: %v", err)
	}
	compared := 0
	for _, path := range answers {
		name, _ := filepath.Rel(dir, path)
		want, ok := loggedAttempt(t, path)
		if !ok {
			t.Logf("%s: the log does not hold this attempt's chunks", name)
			continue
		}
		compared++
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkSplit(t, string(body))
		chunks, failed := decodeStream(1, string(body))
		checkEncodable(t, chunks)
		compareAttempt(t, name, want, chunks, failed)
	}
	t.Logf("%d of %d recorded answers compared", compared, len(answers))
	if compared*10 < len(answers)*7 {
		t.Errorf("only %d of %d answers could be compared", compared, len(answers))
	}
}

func compareAttempt(t *testing.T, name string, want attempt, chunks []events.Chunk, failed *Error) {
	t.Helper()
	code, usage := "", ""
	if failed != nil {
		code = string(failed.Failure.Code)
	}
	var rest []events.Chunk
	for _, c := range chunks {
		if c.Type == events.ChunkUsage {
			usage = sayUsage(c.Usage)
			continue
		}
		rest = append(rest, c)
	}
	switch name {
	case "10-retry/responses/004.sse": // the recording is of the bytes; that a reset ended them is not in it
		want.code = string(events.FailureStreamClosed)
	case "10-retry/responses/010.sse": // finish_reason without [DONE]: complete here, a failure there
		want.code = ""
		want.chunks = append(want.chunks, events.Chunk{Type: events.ChunkBlockEnd}, events.Chunk{Type: events.ChunkFinish, Finish: events.Finish{Kind: events.FinishStop}})
	case "20-usage/responses/007.sse": // more hits than input: -15 there
		want.usage = "in 0 read 10 out 1 reasoning 0"
	case "20-usage/responses/009.sse": // 10.5 there
		want.usage = "in 10 out 1 reasoning 0"
	}
	if got := say(rest); got != say(want.chunks) || code != want.code || usage != want.usage {
		t.Errorf("%s\n got %s, %q, %q\nwant %s, %q, %q", name, got, code, usage, say(want.chunks), want.code, want.usage)
	}
}

func sayUsage(u events.Usage) string {
	read := ""
	if u.CacheReported {
		read = fmt.Sprintf("read %d ", u.CacheReadTokens)
	}
	return fmt.Sprintf("in %d %sout %d reasoning %d", u.InputTokens, read, u.OutputTokens, u.ReasoningTokens)
}

// loggedAttempt finds the chunks of an answer in its session's log: those from the log's length at dispatch up to the
// attempt's finish.
func loggedAttempt(t *testing.T, path string) (attempt, bool) {
	t.Helper()
	dir := filepath.Dir(filepath.Dir(path))
	var n int
	if _, err := fmt.Sscanf(filepath.Base(path), "%d.sse", &n); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index []struct {
		N             int    `json:"n"`
		Kind          string `json:"kind"`
		FirstChunkSeq *int64 `json:"firstChunkSeq"`
	}
	if err := json.Unmarshal(b, &index); err != nil {
		t.Fatal(err)
	}
	for i, e := range index {
		if e.N != n || e.Kind != "loop" || e.FirstChunkSeq == nil {
			continue
		}
		next := int64(math.MaxInt64)
		if i+1 < len(index) && index[i+1].FirstChunkSeq != nil {
			next = *index[i+1].FirstChunkSeq
		}
		return readAttempt(t, filepath.Join(dir, "session.jsonl"), *e.FirstChunkSeq, next)
	}
	return attempt{}, false
}

// logLine is a line of the reference's log. Texts that matter are read without loss.
type logLine struct {
	Type string
	Seq  int64
	Seq0 int64
	Data jsontext.Value
}

func readAttempt(t *testing.T, path string, first, next int64) (attempt, bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var a attempt
	found := false
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var l logLine
		unmarshal(t, lines.Bytes(), &l)
		seq := max(l.Seq, l.Seq0)
		if seq < first || found && !strings.Contains(l.Type, "chunk") {
			continue
		}
		if seq >= next { // the process died within the answer, which therefore has no end
			a.code = string(events.FailureStreamClosed)
			return a, found
		}
		if seq == first {
			found = true
		}
		if !found {
			return a, false
		}
		if a.add(t, l) {
			return a, true
		}
	}
	return a, false
}

func unmarshal(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := lossless.Unmarshal(b, v); err != nil {
		t.Fatalf("%v: %.200s", err, b)
	}
}

// add adds a line's chunks and reports whether the attempt ends with it.
func (a *attempt) add(t *testing.T, l logLine) bool {
	t.Helper()
	var d struct {
		Index int64
		ID    lossless.Text
		Name  lossless.Text
		Texts []lossless.Text
		Args  []lossless.Text
		Chunk struct {
			Type           string
			Index          int64
			BlockType      events.BlockType
			Text           lossless.Text
			ID             lossless.Text
			Name           lossless.Text
			ArgumentsDelta lossless.Text
			Usage          struct {
				InputTokens, OutputTokens, ReasoningTokens float64
				CacheReadTokens                            *float64
			}
			Reason struct {
				Kind    string
				Failure struct{ Code string }
			}
		}
	}
	unmarshal(t, l.Data, &d)
	c := d.Chunk
	out := events.Chunk{Type: events.ChunkType(c.Type), Index: c.Index, BlockType: c.BlockType}
	switch {
	case l.Type == "tool-call-chunks":
		for _, arg := range d.Args {
			a.chunks = append(a.chunks, events.Chunk{Type: events.ChunkToolCallDelta, Index: d.Index, ID: string(d.ID), Name: string(d.Name), Texts: []string{string(arg)}})
		}
		return false
	case l.Type != "assistant/chunk":
		kind := events.ChunkTextDelta
		if l.Type == "reasoning-chunks" {
			kind = events.ChunkReasoningDelta
		}
		for _, text := range d.Texts {
			a.chunks = append(a.chunks, events.Chunk{Type: kind, Index: d.Index, Texts: []string{string(text)}})
		}
		return false
	case out.Type == events.ChunkUsage:
		u := events.Usage{InputTokens: int64(c.Usage.InputTokens), OutputTokens: int64(c.Usage.OutputTokens), ReasoningTokens: int64(c.Usage.ReasoningTokens)}
		if c.Usage.CacheReadTokens != nil {
			u.CacheReported, u.CacheReadTokens = true, int64(*c.Usage.CacheReadTokens)
		}
		a.usage = sayUsage(u)
		return false
	case out.Type == events.ChunkFinish && c.Reason.Kind == "error":
		a.code = c.Reason.Failure.Code
		return true
	case out.Type == events.ChunkFinish:
		out.Finish.Kind = events.FinishKind(c.Reason.Kind)
	case out.Type == events.ChunkToolCallDelta:
		out.ID, out.Name, out.Texts = string(c.ID), string(c.Name), []string{string(c.ArgumentsDelta)}
	case out.Type == events.ChunkTextDelta, out.Type == events.ChunkReasoningDelta:
		out.Texts = []string{string(c.Text)}
	}
	a.chunks = append(a.chunks, out)
	return out.Type == events.ChunkFinish
}
