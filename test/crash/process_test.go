package crash_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// assignment is what a worker process is told.
type assignment struct {
	NATS     string `json:"nats"`
	Replicas int    `json:"replicas"`
	Provider string `json:"provider"`
	Effects  string `json:"effects"` // the file that the tool with an effect writes to
	Stop     string `json:"stop"`    // the boundary to stop at, empty for none
	Trace    bool   `json:"trace"`   // report every boundary
}

// ackWait is how long the inputs of a killed worker stay with it.
const ackWait = 200 * time.Millisecond

const (
	// inline makes the longer one of the tools' outputs an object.
	inline = 1 << 10
	// attempts is more than the failures of one step and the crashes of one case together.
	attempts = 8
)

// run is the main function of a worker process.
func (a *assignment) run(ctx context.Context) error {
	const toldOn = 3 // the first file beside the standard ones
	g := newGate(a.Stop, a.Trace, os.NewFile(toldOn, "reports"))
	client, err := jetstream.Connect(ctx, jetstream.Config{URL: a.NATS, Replicas: a.Replicas, AckWait: ackWait})
	if err != nil {
		return err
	}
	defer client.Close()
	transport := &gatedTransport{g, &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{BaseURL: a.Provider, Transport: transport})
	if err != nil {
		return err
	}
	set, err := tools.NewSet(&look{g}, &mark{g, a.Effects})
	if err != nil {
		return err
	}
	metrics, err := worker.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Config{
		Name: "worker", Instance: newID(), NewID: newID, Tools: set, Objects: &gatedObjects{client.Objects(), g},
		Routes:        provider.NewRoutes(map[string]provider.Adapter{provider.KindDeepSeek: adapter}),
		Defaults:      events.Options{Provider: provider.KindDeepSeek, Model: "deepseek-chat", System: "Be brief."},
		Retry:         provider.RetryPolicy{MaxAttempts: attempts, Base: time.Millisecond},
		InlineMax:     inline,
		ChunkInterval: math.MaxInt64, // answers are cut by length alone: every run has the same events
		Log:           slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}, worker.Service{Client: client, AckWait: ackWait, Metrics: metrics, Logs: &gatedStore{client.Logs(), g}})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// gatedStore makes and opens logs with gates.
type gatedStore struct {
	eventlog.Store
	gate *gate
}

func (s *gatedStore) Create(ctx context.Context, id events.ID) (log eventlog.Log, err error) {
	err = s.gate.around(opCreate, "", func() error {
		log, err = s.Store.Create(ctx, id)
		return err
	})
	return &gatedLog{log, s.gate}, err
}

func (s *gatedStore) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	log, err := s.Store.Open(ctx, id)
	return &gatedLog{log, s.gate}, err
}

type gatedLog struct {
	log  eventlog.Log
	gate *gate
}

func (l *gatedLog) Append(ctx context.Context, e *events.Event, payload []byte) error {
	return l.gate.around(opAppend, string(e.Type()), func() error { return l.log.Append(ctx, e, payload) })
}

func (l *gatedLog) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return l.log.Read(ctx, from)
}

func (l *gatedLog) Last(ctx context.Context) (uint64, error) { return l.log.Last(ctx) }

type gatedObjects struct {
	objects.Store
	gate *gate
}

func (s *gatedObjects) Put(ctx context.Context, ref objects.Ref, data []byte) error {
	return s.gate.around(opPut, "", func() error { return s.Store.Put(ctx, ref, data) })
}

type gatedTransport struct {
	gate *gate
	http *http.Transport
}

func (t *gatedTransport) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	err = t.gate.around(opDispatch, "", func() error {
		resp, err = t.http.RoundTrip(r) //nolint:bodyclose // whoever sent the request closes it
		return err
	})
	return resp, err
}

// arguments are those of both tools.
type arguments struct {
	Call string `json:"call"` // the call's id: a tool is not told otherwise
}

func schemaOf(name string) events.Tool {
	const parameters = `{"type":"object","properties":{"call":{"type":"string"}},"required":["call"]}`
	return events.Tool{Name: name, Description: "A tool that may be interrupted.", Parameters: events.RawJSON(parameters)}
}

// look is a tool that changes nothing.
type look struct{ gate *gate }

func (*look) Schema() events.Tool  { return schemaOf(string(opLook)) }
func (*look) Safety() tools.Safety { return tools.Safety{Parallel: true, ReadOnly: true} }

func (t *look) Run(_ context.Context, raw string) (r tools.Result) {
	err := t.gate.around(opLook, "", func() error {
		var a arguments
		if err := json.Unmarshal([]byte(raw), &a); err != nil {
			return err
		}
		r.Output = []byte(seen(a.Call))
		return nil
	})
	if err != nil {
		return tools.Failed(events.ToolFailed, "%v", err)
	}
	return r
}

// mark is a tool that must not run twice: it adds the call's id to a file.
type mark struct {
	gate *gate
	path string
}

func (*mark) Schema() events.Tool  { return schemaOf(string(opMark)) }
func (*mark) Safety() tools.Safety { return tools.Safety{} }

func (t *mark) Run(_ context.Context, raw string) (r tools.Result) {
	err := t.gate.around(opMark, "", func() (err error) {
		var a arguments
		if err := json.Unmarshal([]byte(raw), &a); err != nil {
			return err
		}
		f, err := os.OpenFile(t.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(a.Call + "\n")
		r.Output = []byte("marked " + a.Call)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return tools.Failed(events.ToolFailed, "%v", err)
	}
	return r
}
