package jetstream

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	// listStep is how far a listing goes back when the page does not join up with the one before.
	listStep = 64
	// sessionStreamEnd is behind the names of all sessions' streams.
	sessionStreamEnd = "SESSION`"
)

// listedStream is a stream as the server lists it. A stream that did not answer has a name alone.
type listedStream struct {
	name    string
	info    streamInfo
	missing bool
}

// Sessions implements [eventlog.Store]. Sessions come in the order of their IDs. Streams that are mirrors of another
// account's are listed like all others.
func (l *Logs) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return func(yield func(eventlog.Info, error) bool) {
		asked := 0 // how many streams were asked for one by one
		for s, err := range l.client.sessionStreams(ctx, l.client.prefix) {
			if err != nil {
				yield(eventlog.Info{}, fmt.Errorf("list sessions: %w", mapped(err)))
				return
			}
			if !yield(l.info(ctx, &s, &asked)) {
				return
			}
		}
	}
}

// sessionStreams yields the sessions' streams of the account that answers under the prefix, in the order of their IDs. An
// error, which is not mapped, ends it.
//
// The server filters a listing by subject, but a mirror has none; so all streams are asked for, and the others are passed
// over: they are listed by name, so that those of sessions follow each other, and their beginning is searched for.
//
// Pages are cut by offset, so a stream that is deleted meanwhile shifts the others to the front. Each page is therefore
// made to overlap the one before by one stream, and when it does not, it is asked for again from further ahead.
func (c *Client) sessionStreams(ctx context.Context, prefix string) iter.Seq2[listedStream, error] {
	return func(yield func(listedStream, error) bool) {
		last := sessionStreamPrefix // the name of the stream that was looked at last
		offset, page, err := c.firstPage(ctx, prefix)
		for ; err == nil; page, err = c.listPage(ctx, prefix, offset) {
			if offset > 0 && (len(page.streams) == 0 || page.streams[0].name > last) {
				offset = max(0, offset-listStep)
				continue
			}
			for i := range page.streams {
				s := &page.streams[i]
				if s.name <= last {
					continue
				}
				last = s.name
				if events.ID(strings.TrimPrefix(s.name, sessionStreamPrefix)).Valid() && !yield(*s, nil) {
					return
				}
			}
			end := offset + len(page.streams)
			if end >= page.total || len(page.streams) == 0 || last >= sessionStreamEnd {
				return
			}
			if end-1 > offset {
				offset = end - 1
			} else {
				offset++
			}
		}
		yield(listedStream{}, err)
	}
}

// firstPage returns a page, and its offset, that begins before the streams of sessions, unless none does, and ends among
// them, or before them by less than a page: it halves what may be before them.
func (c *Client) firstPage(ctx context.Context, prefix string) (offset int, page streamPage, err error) {
	page, err = c.listPage(ctx, prefix, 0)
	behind := page.total // no stream from here on is before those of sessions
	for err == nil {
		n := len(page.streams)
		before := offset + n - 1
		if n == 0 || page.streams[n-1].name >= sessionStreamPrefix || behind-before <= n {
			return offset, page, nil
		}
		at := before + (behind-before)/2
		var further streamPage
		if further, err = c.listPage(ctx, prefix, at); err != nil {
			break
		}
		if len(further.streams) == 0 || further.streams[0].name >= sessionStreamPrefix {
			behind = at
		} else {
			offset, page = at, further
		}
	}
	return 0, streamPage{}, err
}

// askMissing is how many streams of one listing are asked for one by one, because their servers did not answer the
// listing in time: right after a stream was made in a cluster, they may not.
const askMissing = 32

func (l *Logs) info(ctx context.Context, s *listedStream, asked *int) (eventlog.Info, error) {
	id := events.ID(strings.TrimPrefix(s.name, sessionStreamPrefix))
	if s.missing {
		err := errNoAnswer
		if *asked < askMissing {
			*asked++
			s.info, err = l.client.info(ctx, l.client.prefix, s.name)
		}
		if err != nil {
			return eventlog.Info{ID: id}, fmt.Errorf("list sessions: session %s: its stream's servers do not answer: %w", id, mapped(err))
		}
	}
	state := &s.info.State
	info := eventlog.Info{ID: id, Last: state.LastSeq, Messages: state.Messages, Bytes: state.Bytes}
	if state.LastSeq > 0 {
		info.LastTime = state.LastTime
	}
	return info, nil
}

// streamPage is a page of the listing.
type streamPage struct {
	streams []listedStream // in the order of their names
	total   int            // of all pages
}

// listPage asks the account that answers under the prefix for its streams from offset on.
func (c *Client) listPage(ctx context.Context, prefix string, offset int) (streamPage, error) {
	ask := struct {
		Offset int `json:"offset"`
	}{offset}
	var answer struct {
		Error   *natsjs.APIError `json:"error"`
		Total   int              `json:"total"`
		Streams []streamInfo     `json:"streams"`
		Missing []string         `json:"missing"`
	}
	if err := c.apiAt(ctx, prefix, "STREAM.LIST", ask, &answer, &answer.Error); err != nil {
		return streamPage{}, err
	}
	page := streamPage{total: answer.Total}
	for _, name := range answer.Missing {
		page.streams = append(page.streams, listedStream{name: name, missing: true})
	}
	for i := range answer.Streams {
		if name := answer.Streams[i].Config.Name; !slices.Contains(answer.Missing, name) {
			page.streams = append(page.streams, listedStream{name: name, info: answer.Streams[i]})
		}
	}
	slices.SortFunc(page.streams, func(a, b listedStream) int { return strings.Compare(a.name, b.name) })
	return page, nil
}
