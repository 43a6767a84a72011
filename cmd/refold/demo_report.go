package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/audit"
)

func asText(s string) lossless.Text { return lossless.Text(s) }

// report prints what verifier and projector say about every request, and fails unless each is a match.
func (d *demo) report(ctx context.Context) error {
	var requests []replay.Request
	for r, err := range replay.Requests(ctx, d.session, d.log, d.local.Client.Objects()) {
		if err != nil {
			return err
		}
		requests = append(requests, r)
	}
	verdicts, steps, err := d.gather(ctx, requests)
	if err != nil {
		return err
	}
	t := table(d.out, "SESSION\tTURN\tSTEP\tATTEMPT\tBODY BYTES\tVERDICT\tCACHED\tUNCACHED\tCAUSE OF A BREAK")
	matches := 0
	for i := range requests {
		r := &requests[i]
		v := verdicts[r.Seq]
		if v.Result == audit.Match {
			matches++
		}
		cached, uncached, cause := tokens(steps[r.Seq], r.Seq)
		if _, err := fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", d.session, r.Stream.Turn, r.Stream.Step, r.Stream.Attempt,
			r.Stream.Body.Bytes, v.Result, cached, uncached, cause); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	wire := d.compareWire(requests)
	d.say("demo: %d requests, %d match, %d other\n", len(requests), matches, len(requests)-matches)
	if matches != len(requests) || len(requests) == 0 {
		return errors.New("not every request is a match")
	}
	return wire
}

// gather waits for the verdict on every request and the record of every step.
func (d *demo) gather(ctx context.Context, requests []replay.Request) (map[uint64]audit.Verdict, map[uint64]*project.Record, error) {
	for {
		verdicts, steps := make(map[uint64]audit.Verdict), make(map[uint64]*project.Record)
		for r, err := range d.local.Client.Verdicts().Read(ctx, d.session, 1) {
			if err != nil {
				return nil, nil, err
			}
			v, err := audit.DecodeVerdict(r.Payload)
			if err == nil {
				err = v.Verify()
			}
			if err != nil {
				return nil, nil, err
			}
			verdicts[v.Seq] = v
		}
		for r, err := range d.local.Client.Steps().Read(ctx, d.session, 1) {
			if err != nil {
				return nil, nil, err
			}
			step, err := project.Decode(r.Payload)
			if err != nil {
				return nil, nil, err
			}
			for _, a := range step.Attempts {
				steps[a.Stream] = &step
			}
		}
		missing := 0
		for i := range requests {
			if _, ok := verdicts[requests[i].Seq]; !ok {
				missing++
			}
			if steps[requests[i].Seq] == nil {
				missing++
			}
		}
		if missing == 0 {
			return verdicts, steps, nil
		}
		const again = 50 * time.Millisecond
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%d verdicts or step records did not come: %w", missing, ctx.Err())
		}
	}
}

// tokens words what a step's record says about the request at seq.
func tokens(step *project.Record, seq uint64) (cached, uncached, cause string) {
	for i := range step.Attempts {
		a := &step.Attempts[i]
		if a.Stream != seq {
			continue
		}
		u := a.Usage
		if i == len(step.Attempts)-1 {
			u, cause = step.Usage, string(step.Cause)
		} else {
			cause = "(" + string(a.Failure) + ")"
		}
		if u == nil {
			return "-", "-", cause
		}
		return fmt.Sprint(u.CacheRead), fmt.Sprint(u.InputUncached), cause
	}
	return "-", "-", "-"
}

// compareWire compares the rebuilt bodies with what the simulator received.
func (d *demo) compareWire(requests []replay.Request) error {
	if d.sim == nil {
		return nil
	}
	sent := d.sentBodies()
	equal := 0
	for i := range requests {
		if bytes.Equal(sent[requests[i].Seq], requests[i].Body.Bytes()) {
			equal++
		}
	}
	d.say("wire: %d of %d rebuilt bodies are byte for byte what the provider received\n", equal, len(requests))
	if equal != len(requests) {
		return errors.New("a rebuilt body is not what the provider received")
	}
	return nil
}
