package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// storedVerdicts returns the stored verdicts of all kinds on a session, in the order of their places.
func storedVerdicts(ctx context.Context, client *jetstream.Client, id events.ID) ([]jetstream.Record, error) {
	var all []jetstream.Record
	for _, records := range []*jetstream.Records{client.Verdicts(), client.WireVerdicts(), client.StrayVerdicts()} {
		for r, err := range records.Read(ctx, id, 1) {
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b jetstream.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return all, nil
}

// receipts returns what witnesses have signed about a session's requests, and what is to be said about records that are no
// receipts.
func receipts(ctx context.Context, client *jetstream.Client, id events.ID) (all []audit.PlacedReceipt, unread []audit.Verdict, err error) {
	if err := client.Receipts().Current(ctx); err != nil { // a mirror may be behind
		return nil, nil, err
	}
	for r, err := range client.Receipts().Read(ctx, id, 1) {
		if errors.Is(err, eventlog.ErrNotFound) {
			return nil, nil, fmt.Errorf("%w: no witness has written to this server", err)
		}
		if err != nil {
			return nil, nil, err
		}
		receipt, err := audit.DecodeReceipt(r.Payload)
		if err != nil {
			unread = append(unread, unreadRecord(id, jetstream.WitnessStream, r.Seq, err))
			continue
		}
		all = append(all, audit.PlacedReceipt{Place: r.Seq, Receipt: receipt})
	}
	return all, unread, nil
}

// snapshot bounds the check of a log that may grow to its first events: those have their receipts when these are read
// afterwards. What was read meanwhile about events that came since is left out, and what is about none stays.
//
// Of a mirror it may not be known which events there are behind its last one, because it is behind, or its origin does not answer
// or has deleted the stream. Then it is checked as it is, no receipt is held against it that names a later event, and unknown
// says what was not looked at.
func snapshot(ctx context.Context, log eventlog.Log, check *audit.LogCheck) (unknown []audit.Verdict, err error) {
	if m, ok := log.(interface {
		Current(ctx context.Context) error
	}); ok {
		err = m.Current(ctx)
	}
	if err != nil && (ctx.Err() != nil || !errors.Is(err, eventlog.ErrUnavailable)) {
		return nil, err
	}
	behind := err != nil
	if behind {
		unknown = append(unknown, audit.Verdict{
			Kind: audit.KindLog, Session: check.Session, Seq: check.Last + 1, Result: audit.CouldNotCheck,
			Reason: audit.Reason(fmt.Sprintf("whether there are more events, and which receipts are theirs, is not known: %v", err)),
		})
	}
	now, err := log.Last(ctx)
	if err != nil {
		return nil, err
	}
	since := func(seq uint64) bool { return seq > check.Last && seq <= now }
	check.Receipts = slices.DeleteFunc(check.Receipts, func(p audit.PlacedReceipt) bool {
		return since(p.Receipt.Seq) || behind && p.Receipt.Seq > check.Last
	})
	check.Prior = slices.DeleteFunc(check.Prior, func(v audit.Verdict) bool { return since(v.Seq) })
	check.Messages = eventlog.UpTo(check.Messages, check.Last)
	return unknown, nil
}

// digests words how the bodies that a verdict on a call or a receipt is about compare: which are equal, and where they are not,
// what each is.
func digests(v *audit.Verdict) string {
	type body struct {
		name   string
		digest events.BodyDigest
	}
	var text string
	var last body
	for _, b := range []body{{"recorded", v.Recorded}, {"rebuilt", v.Rebuilt}, {"wire", v.Wire}} {
		if b.digest == (events.BodyDigest{}) {
			continue
		}
		switch {
		case text == "":
			text = b.name
		case b.digest == last.digest:
			text += " = " + b.name
		default:
			text += fmt.Sprintf(" %s/%d, %s", short(last.digest), last.digest.Bytes, b.name)
		}
		last = b
	}
	if v.Result != audit.Match && text != "" {
		text += fmt.Sprintf(" %s/%d", short(last.digest), last.digest.Bytes)
	}
	if v.Receipt > 0 {
		text += fmt.Sprintf(", receipt %d", v.Receipt)
	}
	return text
}

// short returns the first digits of a digest.
func short(d events.BodyDigest) string {
	const digits = 12
	return d.SHA256.String()[:digits]
}

// detail returns what a report's line says last.
func detail(v *audit.Verdict) string {
	if v.Kind != audit.KindWire && v.Kind != audit.KindStray {
		return v.Reason
	}
	if v.Reason == "" {
		return digests(v)
	}
	return fmt.Sprintf("%s: %s (%s)", v.Rule, v.Reason, digests(v))
}
