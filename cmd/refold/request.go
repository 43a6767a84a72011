package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
)

const requestHelp = "REQUEST is the request's place in the session, from 1 (refold request list shows it), or @SEQ, the sequence of its llm/stream event."

func newRequest(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use: "request", Short: "List, show and compare the model requests of a session", Long: requestHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRequestList(g), newRequestShow(g), newRequestDiff(g))
	return cmd
}

// digestMatches reports whether the rebuilt body is the recorded one.
func digestMatches(r *replay.Request) bool { return r.Err == nil && r.Body.Digest() == r.Stream.Body }

func newRequestList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list SESSION", Short: "List a session's model requests, those beside the conversation too", Args: cobra.ExactArgs(1),
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, id, log, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			out := cmd.OutOrStdout()
			t := table(io.Discard, "")
			if !g.json {
				t = table(out, "N\tSEQ\tTIME\tPURPOSE\tSTEP\tATTEMPT\tMODEL\tBYTES\tREBUILT\tSHA-256")
			}
			for r, err := range replay.Requests(cmd.Context(), id, log, client.Objects()) {
				if err != nil {
					return errors.Join(t.Flush(), err)
				}
				s := &r.Stream
				if g.json {
					err = printJSON(out, requestRow(&r))
				} else {
					_, err = fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", r.N, r.Seq, stamp(r.Time), s.Purpose, stepName(s.Turn, s.Step), s.Attempt,
						program.Printable(r.Header.Config.Model), s.Body.Bytes, rebuilt(&r), s.Body.SHA256)
				}
				if err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
}

func rebuilt(r *replay.Request) string {
	switch {
	case r.Err != nil:
		return "no"
	case digestMatches(r):
		return "same"
	}
	return "differs"
}

func requestRow(r *replay.Request) map[string]any {
	s := &r.Stream
	row := map[string]any{
		"n": r.N, "seq": r.Seq, "time": r.Time, "turn": s.Turn, "step": s.Step, "attempt": s.Attempt, "purpose": s.Purpose,
		"codec": s.Codec, "provider": r.Header.Config.Provider, "model": r.Header.Config.Model,
		"bytes": s.Body.Bytes, "sha256": s.Body.SHA256.String(), "rebuilt": rebuilt(r),
	}
	if r.Err != nil {
		row["error"] = r.Err.Error()
	}
	return row
}

// find returns the requests that the arguments name, in the arguments' order.
func (g *globals) find(cmd *cobra.Command, session string, wanted ...string) ([]replay.Request, error) {
	match := make([]func(*replay.Request) bool, len(wanted))
	for i, w := range wanted {
		n, err := strconv.ParseUint(strings.TrimPrefix(w, "@"), 10, 64)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("request %q: want its place in the session, from 1, or @SEQ", w)
		}
		match[i] = func(r *replay.Request) bool { return uint64(r.N) == n }
		if strings.HasPrefix(w, "@") {
			match[i] = func(r *replay.Request) bool { return r.Seq == n }
		}
	}
	client, id, log, done, err := g.open(cmd.Context(), session)
	if err != nil {
		return nil, err
	}
	defer done()
	found := make([]replay.Request, len(wanted))
	missing := len(wanted)
	for r, err := range replay.Requests(cmd.Context(), id, log, client.Objects()) {
		if err != nil {
			return nil, err
		}
		for i, m := range match {
			if found[i].N == 0 && m(&r) {
				found[i] = r
				missing--
			}
		}
		if missing == 0 {
			break
		}
	}
	for i := range found {
		switch {
		case found[i].N == 0:
			return nil, fmt.Errorf("session %s has no request %s: refold request list %s shows them", id, wanted[i], id)
		case found[i].Err != nil:
			return nil, fmt.Errorf("request %s cannot be rebuilt: %w", wanted[i], found[i].Err)
		}
	}
	return found, nil
}

func newRequestShow(g *globals) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "show SESSION REQUEST", Short: "Print the exact body of a request, rebuilt from the log",
		Long: "Prints the body of a request, byte for byte. Only a terminal gets the images in it cut short, unless --raw is given.\n\n" + requestHelp,
		Args: cobra.ExactArgs(2), ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := g.find(cmd, args[0], args[1])
			if err != nil {
				return err
			}
			r := &found[0]
			out := cmd.OutOrStdout()
			if g.json {
				row := requestRow(r)
				row["body"] = json.RawMessage(r.Body.Bytes())
				return printJSON(out, row)
			}
			if raw || !isTerminal(out) {
				_, err = io.Copy(out, r.Body.Reader())
			} else {
				err = printClipped(out, cmd.ErrOrStderr(), r.Body.Bytes())
			}
			if err != nil {
				return err
			}
			if !digestMatches(r) {
				return fmt.Errorf("the rebuilt body (%d bytes, %s) is not the recorded one (%d bytes, %s)",
					r.Body.Digest().Bytes, r.Body.Digest().SHA256, r.Stream.Body.Bytes, r.Stream.Body.SHA256)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print all of the images to a terminal too")
	return cmd
}

// isTerminal reports whether people look at what is written there.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// printClipped prints a body for people.
func printClipped(out, notes io.Writer, body []byte) error {
	short, clipped := clipImages(body)
	if _, err := fmt.Fprintf(out, "%s\n", short); err != nil || clipped == 0 {
		return err
	}
	_, err := fmt.Fprintf(notes, "refold: images are cut short (%d): with --raw, into a file and into a pipe they are whole\n", clipped)
	return err
}

// clipImages cuts the base64 of data URLs in a body short and returns how many it cut.
func clipImages(body []byte) (short []byte, clipped int) {
	const mark, most, shown = ";base64,", 64, 24
	for {
		i := bytes.Index(body, []byte(mark))
		if i < 0 {
			return append(short, body...), clipped
		}
		i += len(mark)
		short, body = append(short, body[:i]...), body[i:]
		n := 0
		for n < len(body) && isBase64(body[n]) {
			n++
		}
		if n > most {
			short = fmt.Appendf(append(short, body[:shown]...), "...(%d characters)", n)
			body = body[n:]
			clipped++
		}
	}
}

func isBase64(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '='
}

// difference says where two bodies part.
type difference struct {
	A       int    `json:"a"`
	B       int    `json:"b"`
	ABytes  int64  `json:"aBytes"`
	BBytes  int64  `json:"bBytes"`
	Equal   bool   `json:"equal"`
	Prefix  int64  `json:"commonPrefix"`
	Offset  int64  `json:"offset"` // of the first byte that differs, from 0; -1 when the bodies are equal
	Pointer string `json:"pointer"`
	AText   string `json:"aText"`
	BText   string `json:"bText"`

	APurpose events.Purpose `json:"aPurpose"`
	BPurpose events.Purpose `json:"bPurpose"`
}

// requestName names a request for people: its place, and what the call is for when that is not the conversation.
func requestName(n int, purpose events.Purpose) string {
	if purpose == events.PurposeLoop {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d (%s)", n, purpose)
}

func newRequestDiff(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "diff SESSION REQUEST REQUEST", Short: "Tell where two requests part: the first byte, the JSON pointer there, the common prefix",
		Long: requestHelp, Args: cobra.ExactArgs(3), ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := g.find(cmd, args[0], args[1], args[2])
			if err != nil {
				return err
			}
			d := compare(&found[0], &found[1])
			if g.json {
				return printJSON(cmd.OutOrStdout(), d)
			}
			out := cmd.OutOrStdout()
			x, y := requestName(d.A, d.APurpose), requestName(d.B, d.BPurpose)
			if d.Equal {
				_, err = fmt.Fprintf(out, "requests %s and %s are equal: %d bytes\n", x, y, d.ABytes)
				return err
			}
			_, err = fmt.Fprintf(out, "first difference: byte %d, at %q\ncommon prefix: %d bytes (%s of request %s, %s of request %s)\n%8s: %s\n%8s: %s\n",
				d.Offset, d.Pointer, d.Prefix, percent(d.Prefix, d.ABytes), x, percent(d.Prefix, d.BBytes), y, x, d.AText, y, d.BText)
			return err
		},
	}
}

func percent(n, of int64) string { return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(max(of, 1))) }

func compare(a, b *replay.Request) difference {
	d := difference{
		A: a.N, B: b.N, ABytes: a.Body.Digest().Bytes, BBytes: b.Body.Digest().Bytes,
		Prefix: codec.CommonPrefix(&a.Body, &b.Body), Offset: -1,
		APurpose: a.Purpose, BPurpose: b.Purpose,
	}
	if d.Equal = a.Body.Digest() == b.Body.Digest(); d.Equal {
		return d
	}
	x, y := a.Body.Bytes(), b.Body.Bytes()
	d.Offset = d.Prefix
	d.Pointer = codec.Pointer(y, d.Offset)
	if d.Offset >= int64(len(y)) {
		d.Pointer = codec.Pointer(x, d.Offset)
	}
	d.AText, d.BText = around(x, d.Offset), around(y, d.Offset)
	return d
}

// around quotes the body at an offset.
func around(body []byte, offset int64) string {
	const before, after = 20, 60
	lo, hi := max(offset-before, 0), min(offset+after, int64(len(body)))
	return strconv.Quote(string(body[min(lo, int64(len(body))):hi]))
}
