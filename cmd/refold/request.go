package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/codec"
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
		Use: "list SESSION", Short: "List a session's model requests", Args: cobra.ExactArgs(1),
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
				t = table(out, "N\tSEQ\tTIME\tSTEP\tATTEMPT\tMODEL\tBYTES\tREBUILT\tSHA-256")
			}
			for r, err := range replay.Requests(cmd.Context(), id, log, client.Objects()) {
				if err != nil {
					return errors.Join(t.Flush(), err)
				}
				s := &r.Stream
				if g.json {
					err = printJSON(out, requestRow(&r))
				} else {
					_, err = fmt.Fprintf(t, "%d\t%d\t%s\t%d.%d\t%d\t%s\t%d\t%s\t%s\n", r.N, r.Seq, stamp(r.Time), s.Turn, s.Step, s.Attempt,
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
	return &cobra.Command{
		Use: "show SESSION REQUEST", Short: "Print the exact body of a request, rebuilt from the log", Long: requestHelp,
		Args: cobra.ExactArgs(2), ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := g.find(cmd, args[0], args[1])
			if err != nil {
				return err
			}
			r := &found[0]
			if g.json {
				row := requestRow(r)
				row["body"] = json.RawMessage(r.Body.Bytes())
				return printJSON(cmd.OutOrStdout(), row)
			}
			if _, err := io.Copy(cmd.OutOrStdout(), r.Body.Reader()); err != nil {
				return err
			}
			if !digestMatches(r) {
				return fmt.Errorf("the rebuilt body (%d bytes, %s) is not the recorded one (%d bytes, %s)",
					r.Body.Digest().Bytes, r.Body.Digest().SHA256, r.Stream.Body.Bytes, r.Stream.Body.SHA256)
			}
			return nil
		},
	}
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
			if d.Equal {
				_, err = fmt.Fprintf(out, "requests %d and %d are equal: %d bytes\n", d.A, d.B, d.ABytes)
				return err
			}
			_, err = fmt.Fprintf(out, "first difference: byte %d, at %q\ncommon prefix: %d bytes (%s of request %d, %s of request %d)\n%8d: %s\n%8d: %s\n",
				d.Offset, d.Pointer, d.Prefix, percent(d.Prefix, d.ABytes), d.A, percent(d.Prefix, d.BBytes), d.B, d.A, d.AText, d.B, d.BText)
			return err
		},
	}
}

func percent(n, of int64) string { return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(max(of, 1))) }

func compare(a, b *replay.Request) difference {
	d := difference{
		A: a.N, B: b.N, ABytes: a.Body.Digest().Bytes, BBytes: b.Body.Digest().Bytes,
		Prefix: codec.CommonPrefix(&a.Body, &b.Body), Offset: -1,
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
