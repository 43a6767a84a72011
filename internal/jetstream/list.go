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

// listStep is how far a listing goes back when the page does not join up with the one before.
const listStep = 64

// listedStream is a stream as the server lists it. A stream that did not answer has a name alone.
type listedStream struct {
	name    string
	state   streamState
	missing bool
}

// Sessions implements [eventlog.Store]. Sessions come in the order of their IDs.
//
// The server lists streams by name, in pages that are cut by offset, so a stream that is deleted meanwhile shifts the
// others to the front. Each page is therefore made to overlap the one before by one stream, and when it does not, it
// is asked for again from further ahead.
func (l *Logs) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return func(yield func(eventlog.Info, error) bool) {
		var (
			offset int
			last   string // the name of the stream returned last
			asked  int    // how many streams were asked for one by one
		)
		for {
			page, err := l.client.listPage(ctx, offset)
			if err != nil {
				yield(eventlog.Info{}, fmt.Errorf("list sessions: %w", mapped(err)))
				return
			}
			if offset > 0 && (len(page.streams) == 0 || page.streams[0].name > last) {
				offset = max(0, offset-listStep)
				continue
			}
			for _, s := range page.streams {
				if s.name <= last {
					continue
				}
				last = s.name
				if id, ok := strings.CutPrefix(s.name, sessionStreamPrefix); ok && events.ID(id).Valid() && !yield(l.info(ctx, &s, events.ID(id), &asked)) {
					return
				}
			}
			end := offset + len(page.streams)
			if end >= page.total || len(page.streams) == 0 {
				return
			}
			if end-1 > offset {
				offset = end - 1
			} else {
				offset++
			}
		}
	}
}

// askMissing is how many streams of one listing are asked for one by one, because their servers did not answer the
// listing in time: right after a stream was made in a cluster, they may not.
const askMissing = 32

func (l *Logs) info(ctx context.Context, s *listedStream, id events.ID, asked *int) (eventlog.Info, error) {
	if s.missing {
		err := errNoAnswer
		if *asked < askMissing {
			*asked++
			s.state, err = l.client.state(ctx, s.name)
		}
		if err != nil {
			return eventlog.Info{ID: id}, fmt.Errorf("list sessions: session %s: its stream's servers do not answer: %w", id, mapped(err))
		}
	}
	info := eventlog.Info{ID: id, Last: s.state.LastSeq, Messages: s.state.Messages, Bytes: s.state.Bytes}
	if s.state.LastSeq > 0 {
		info.LastTime = s.state.LastTime
	}
	return info, nil
}

// streamPage is a page of the listing.
type streamPage struct {
	streams []listedStream // in the order of their names
	total   int            // of all pages
}

// listPage asks for the streams of sessions from offset on.
func (c *Client) listPage(ctx context.Context, offset int) (streamPage, error) {
	ask := struct {
		Offset  int    `json:"offset"`
		Subject string `json:"subject"`
	}{offset, sessionPrefix + "*.>"}
	var answer struct {
		Error   *natsjs.APIError `json:"error"`
		Total   int              `json:"total"`
		Streams []struct {
			Config struct {
				Name string `json:"name"`
			} `json:"config"`
			State streamState `json:"state"`
		} `json:"streams"`
		Missing []string `json:"missing"`
	}
	if err := c.api(ctx, "STREAM.LIST", ask, &answer, &answer.Error); err != nil {
		return streamPage{}, err
	}
	page := streamPage{total: answer.Total}
	for _, name := range answer.Missing {
		page.streams = append(page.streams, listedStream{name: name, missing: true})
	}
	for _, s := range answer.Streams {
		if !slices.Contains(answer.Missing, s.Config.Name) {
			page.streams = append(page.streams, listedStream{name: s.Config.Name, state: s.State})
		}
	}
	slices.SortFunc(page.streams, func(a, b listedStream) int { return strings.Compare(a.name, b.name) })
	return page, nil
}
