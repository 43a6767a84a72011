package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/objects/objectstest"
)

func objectsHarness(t testing.TB, s *server.Server, cfg natsjs.StreamConfig) objectstest.Harness {
	js := objectsConnect(t, s)
	stream := createObjects(t, js, cfg)
	h := objectDamage{js: js, stream: stream}
	h.everywhere(t)
	for ready := false; !ready; { // nobody answers a direct get until the leader has begun to
		_, err := NewObjects(js).Get(t.Context(), objects.Sum(nil))
		if ready = errors.Is(err, objects.ErrNotFound); !ready && !errors.Is(err, objects.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	return objectstest.Harness{
		Store:  NewObjects(js),
		Reopen: func(t testing.TB) objects.Store { return NewObjects(objectsConnect(t, s)) },
		Tear: func(t testing.TB, ref objects.Ref, data []byte) {
			// What a writer leaves that dies just before the manifest, its first chunk never having arrived.
			o := NewObjects(js)
			m := newObjectManifest(ref, data)
			for n := range m.chunks {
				if n > 0 || len(m.chunks) == 1 {
					if err := o.place(t.Context(), o.chunkPart(&m, data, n), false); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
		Flip: func(t testing.TB, d objects.Digest) {
			subject := objectChunkSubject(d, 0)
			msg := h.get(t, subject)
			data := bytes.Clone(msg.data)
			data[len(data)-1] ^= 1
			h.replace(t, subject, data)
		},
		DropPart:   func(t testing.TB, d objects.Digest) { h.drop(t, objectChunkSubject(d, 0)) },
		DropObject: func(t testing.TB, d objects.Digest) { h.drop(t, objectSubject(d, objectManifestName)) },
	}
}

// objectDamage does with the rights of an operator what no store does.
type objectDamage struct {
	js     natsjs.JetStream
	stream natsjs.Stream
}

// get asks the leader, like everything here, so that a lagging replica does not disturb the tests.
func (h objectDamage) get(t testing.TB, subject string) storedMessage {
	t.Helper()
	msg, err := NewObjects(h.js).lastAtLeader(t.Context(), subject)
	if err != nil || msg.seq == 0 {
		t.Fatalf("message on %s: %v", subject, err)
	}
	return msg
}

func (h objectDamage) replace(t testing.TB, subject string, data []byte) {
	t.Helper()
	if _, err := h.js.Publish(t.Context(), subject, data); err != nil {
		t.Fatal(err)
	}
	h.everywhere(t)
}

func (h objectDamage) drop(t testing.TB, subject string) {
	t.Helper()
	if err := h.stream.DeleteMsg(t.Context(), h.get(t, subject).seq); err != nil {
		t.Fatal(err)
	}
	h.everywhere(t)
}

// everywhere waits until every replica has what the leader has: any of them may be asked for an object.
func (h objectDamage) everywhere(t testing.TB) {
	t.Helper()
	behind := func(p *natsjs.PeerInfo) bool { return !p.Current || p.Lag > 0 }
	for {
		info, err := h.stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.Cluster == nil || !slices.ContainsFunc(info.Cluster.Replicas, behind) {
			return
		}
	}
}

func TestObjects(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) objectstest.Harness {
		return objectsHarness(t, objectsServer(t, nil), ObjectsConfig(1))
	})
}

func TestObjectsReplicated(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers are left out of short runs")
	}
	servers := objectsCluster(t)
	js := objectsConnect(t, servers[0])
	created := false
	objectstest.Run(t, func(t *testing.T) objectstest.Harness {
		if created {
			if err := js.DeleteStream(t.Context(), ObjectsStream); err != nil {
				t.Fatal(err)
			}
		}
		created = true
		return objectsHarness(t, servers[1], ObjectsConfig(3))
	})
}

// oneServerObjects returns a store over a fresh server and what a test needs to reach behind it.
func oneServerObjects(t testing.TB) (*Objects, objectDamage) {
	t.Helper()
	js := objectsConnect(t, objectsServer(t, nil))
	return NewObjects(js), objectDamage{js: js, stream: createObjects(t, js, ObjectsConfig(1))}
}

func TestObjectsConflictCode(t *testing.T) {
	o, h := oneServerObjects(t)
	ref, err := objects.Put(t.Context(), o, "text/plain", []byte("once"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.js.Publish(t.Context(), objectChunkSubject(ref.Digest, 0), []byte("twice"), natsjs.WithExpectLastSequencePerSubject(0))
	api, ok := errors.AsType[*natsjs.APIError](err)
	if !ok || api.ErrorCode != codeWrongLastSequence || !isObjectConflict(err) {
		t.Errorf("second publish on a chunk's subject: %v", err)
	}
}

// TestObjectsPutOnce: equal puts store every part once.
func TestObjectsPutOnce(t *testing.T) {
	o, h := oneServerObjects(t)
	data := objectstest.Random(3*objectChunkBytes, 1)
	for range 3 {
		if _, err := objects.Put(t.Context(), o, "text/plain", data); err != nil {
			t.Fatal(err)
		}
	}
	info, err := h.stream.Info(t.Context())
	if err != nil || info.State.Msgs != 4 {
		t.Errorf("%d messages, want three chunks and a manifest: %v", info.State.Msgs, err)
	}
}

func TestObjectsCorruption(t *testing.T) {
	data := append(objectstest.Random(objectChunkBytes, 2), bytes.Repeat([]byte("text "), objectChunkBytes/5)...)
	other, err := objects.NewRef("text/plain", []byte("other"))
	if err != nil {
		t.Fatal(err)
	}
	stray := newObjectManifest(other, []byte("other"))
	bomb := append([]byte{objectZstd}, zstdBomb(t, 64<<20)...)
	tests := []struct {
		name   string
		part   string
		change func(stored []byte) []byte
	}{
		{"raw chunk flipped", "0", func(b []byte) []byte { b[100] ^= 1; return b }},
		{"raw chunk short", "0", func(b []byte) []byte { return b[:len(b)-1] }},
		{"zstd chunk flipped", "1", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		{"zstd chunk short", "1", func(b []byte) []byte { return b[:len(b)-1] }},
		{"chunk empty", "1", func([]byte) []byte { return nil }},
		{"chunk of unknown encoding", "1", func(b []byte) []byte { b[0] = 7; return b }},
		{"chunk claiming much more", "1", func([]byte) []byte { return bomb }},
		{"manifest flipped", objectManifestName, func(b []byte) []byte { b[60] ^= 1; return b }},
		{"manifest short", objectManifestName, func(b []byte) []byte { return b[:20] }},
		{"manifest empty", objectManifestName, func([]byte) []byte { return nil }},
		{"manifest of another object", objectManifestName, func([]byte) []byte { return stray.encode() }},
		{"manifest of a later format", objectManifestName, func(b []byte) []byte { b[len(objectMagic)]++; return b }},
	}
	o, h := oneServerObjects(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ref, err := objects.Put(t.Context(), o, "text/plain", data)
			if err != nil {
				t.Fatal(err)
			}
			subject := objectSubject(ref.Digest, test.part)
			h.replace(t, subject, test.change(bytes.Clone(h.get(t, subject).data)))
			_, err = objects.Get(t.Context(), o, ref)
			corrupt, ok := errors.AsType[*objects.CorruptError](err)
			want := "chunk " + test.part
			if test.part == objectManifestName {
				want = objectManifestName
			}
			if !ok || corrupt.Part != want || corrupt.Digest != ref.Digest {
				t.Fatalf("get: %v, want corruption of the %s", err, want)
			}
			if _, err := o.Has(t.Context(), ref.Digest); (test.part == objectManifestName) != errors.Is(err, objects.ErrCorrupt) {
				t.Errorf("has: %v", err)
			}
			if _, err := objects.Put(t.Context(), o, "text/plain", data); err != nil {
				t.Fatalf("put again: %v", err)
			}
			if got, err := objects.Get(t.Context(), o, ref); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("get after repair: %d bytes, %v", len(got), err)
			}
		})
	}
}

// TestObjectsChunkInTheWay: a wrong chunk that was there before the first put is replaced.
func TestObjectsChunkInTheWay(t *testing.T) {
	o, h := oneServerObjects(t)
	data := objectstest.Random(2*objectChunkBytes, 3)
	d := objects.Sum(data)
	h.replace(t, objectChunkSubject(d, 1), []byte("\x00squatter"))
	ref, err := objects.Put(t.Context(), o, "text/plain", data)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := objects.Get(t.Context(), o, ref); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("get: %d bytes, %v", len(got), err)
	}
}

func TestObjectsFull(t *testing.T) {
	tests := []struct {
		name   string
		server func(*server.Options)
		stream func(*natsjs.StreamConfig)
		code   natsjs.ErrorCode
	}{
		{
			name:   "stream max_bytes",
			stream: func(c *natsjs.StreamConfig) { c.MaxBytes = 2 * objectChunkBytes },
			code:   codeStoreFailed,
		},
		{
			name:   "stream max_msgs",
			stream: func(c *natsjs.StreamConfig) { c.MaxMsgs = 2 },
			code:   codeStoreFailed,
		},
		{
			name:   "server max_file_store",
			server: func(o *server.Options) { o.JetStreamMaxStore = 2 * objectChunkBytes },
			code:   codeServerResources,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			js := objectsConnect(t, objectsServer(t, test.server))
			cfg := ObjectsConfig(1)
			if test.stream != nil {
				test.stream(&cfg)
			}
			createObjects(t, js, cfg)
			data := objectstest.Random(8*objectChunkBytes, 4)
			checkFull(t, NewObjects(js), data, test.code)
		})
	}
	t.Run("account limit", func(t *testing.T) {
		s := objectsServer(t, nil)
		limits := map[string]server.JetStreamAccountLimits{
			"": {MaxMemory: -1, MaxStore: 2 * objectChunkBytes, MaxStreams: -1, MaxConsumers: -1},
		}
		if err := s.GlobalAccount().UpdateJetStreamLimits(limits); err != nil {
			t.Fatal(err)
		}
		js := objectsConnect(t, s)
		createObjects(t, js, ObjectsConfig(1))
		checkFull(t, NewObjects(js), objectstest.Random(8*objectChunkBytes, 4), codeAccountResources)
	})
}

// checkFull puts data into a store without room for it.
func checkFull(t *testing.T, o *Objects, data []byte, code natsjs.ErrorCode) {
	t.Helper()
	ref, err := objects.NewRef("text/plain", data)
	if err != nil {
		t.Fatal(err)
	}
	_, err = objects.Put(t.Context(), o, "text/plain", data)
	api, ok := errors.AsType[*natsjs.APIError](err)
	if !errors.Is(err, objects.ErrFull) || !ok || api.ErrorCode != code {
		t.Fatalf("put without room: %v, want code %d", err, code)
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "raise max_bytes") {
		t.Errorf("the message is not one line with a remedy: %q", err)
	}
	if _, err := objects.Get(t.Context(), o, ref); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("get after a put without room: %v", err)
	}
}

func TestObjectsMessageLimits(t *testing.T) {
	data := objectstest.Random(objectChunkBytes, 5)
	t.Run("server max_payload", func(t *testing.T) {
		js := objectsConnect(t, objectsServer(t, func(o *server.Options) { o.MaxPayload = 64 << 10 }))
		createObjects(t, js, ObjectsConfig(1))
		o := NewObjects(js)
		if _, err := objects.Put(t.Context(), o, "text/plain", data); !errors.Is(err, objects.ErrTooLarge) {
			t.Errorf("put: %v", err)
		}
		if _, err := objects.Put(t.Context(), o, "text/plain", data[:1000]); err != nil {
			t.Errorf("put of a small object: %v", err)
		}
	})
	t.Run("stream max_msg_size", func(t *testing.T) {
		js := objectsConnect(t, objectsServer(t, nil))
		cfg := ObjectsConfig(1)
		cfg.MaxMsgSize = 64 << 10
		createObjects(t, js, cfg)
		_, err := objects.Put(t.Context(), NewObjects(js), "text/plain", data)
		api, ok := errors.AsType[*natsjs.APIError](err)
		if !errors.Is(err, objects.ErrTooLarge) || !ok || api.ErrorCode != codeMessageTooLarge {
			t.Errorf("put: %v", err)
		}
	})
}

func TestObjectsUnavailable(t *testing.T) {
	check := func(t *testing.T, ctx context.Context, o *Objects) {
		t.Helper()
		ref, err := objects.NewRef("text/plain", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		cannotTell := func(op string, err error) {
			t.Helper()
			if !errors.Is(err, objects.ErrUnavailable) || errors.Is(err, objects.ErrNotFound) || errors.Is(err, objects.ErrCorrupt) {
				t.Errorf("%s: %v", op, err)
			}
		}
		_, err = objects.Get(ctx, o, ref)
		cannotTell("get", err)
		_, err = o.Has(ctx, ref.Digest)
		cannotTell("has", err)
		_, err = objects.Put(ctx, o, "text/plain", []byte("x"))
		cannotTell("put", err)
	}
	t.Run("no stream", func(t *testing.T) {
		check(t, t.Context(), NewObjects(objectsConnect(t, objectsServer(t, nil))))
	})
	t.Run("no JetStream", func(t *testing.T) {
		s := objectsServer(t, func(o *server.Options) { o.JetStream = false })
		check(t, t.Context(), NewObjects(objectsConnect(t, s)))
	})
	t.Run("closed connection", func(t *testing.T) {
		o, h := oneServerObjects(t)
		h.js.Conn().Close()
		check(t, t.Context(), o)
	})
	t.Run("no answer", func(t *testing.T) {
		nc := objectsConnect(t, objectsServer(t, func(o *server.Options) { o.JetStream = false })).Conn()
		// Somebody listens and says nothing.
		if _, err := nc.Subscribe("$JS.API.>", func(*nats.Msg) {}); err != nil {
			t.Fatal(err)
		}
		js, err := natsjs.New(nc, natsjs.WithDefaultTimeout(20*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		check(t, t.Context(), NewObjects(js))
	})
}

// faultyJetStream makes the publish with a given number fail, before or after it is stored.
type faultyJetStream struct {
	natsjs.JetStream
	failing int64
	stored  bool
	err     error
	count   atomic.Int64
}

func (f *faultyJetStream) PublishMsg(ctx context.Context, m *nats.Msg, opts ...natsjs.PublishOpt) (*natsjs.PubAck, error) {
	if f.count.Add(1)-1 != f.failing {
		return f.JetStream.PublishMsg(ctx, m, opts...)
	}
	if f.stored {
		if _, err := f.JetStream.PublishMsg(ctx, m, opts...); err != nil {
			return nil, err
		}
	}
	return nil, f.err
}

// TestObjectsEveryPublishFails makes each publish of a put fail in turn, unstored and stored: the object is whole or
// absent, and putting again completes it.
func TestObjectsEveryPublishFails(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			_, h := oneServerObjects(t)
			for failing := range int64(4) {
				data := objectstest.Random(2*objectChunkBytes+5, 200+uint64(failing))
				ref, err := objects.NewRef("text/plain", data)
				if err != nil {
					t.Fatal(err)
				}
				faulty := &faultyJetStream{JetStream: h.js, failing: failing, stored: stored, err: nats.ErrTimeout}
				o := NewObjects(faulty)
				if _, err := objects.Put(t.Context(), o, "text/plain", data); !errors.Is(err, objects.ErrUnavailable) {
					t.Fatalf("put with failing publish %d: %v", failing, err)
				}
				visible := stored && failing == 3 // the manifest
				if _, err := objects.Get(t.Context(), o, ref); visible != (err == nil) || (!visible && !errors.Is(err, objects.ErrNotFound)) {
					t.Fatalf("get after failing publish %d: %v", failing, err)
				}
				if _, err := objects.Put(t.Context(), o, "text/plain", data); err != nil {
					t.Fatalf("second put after failing publish %d: %v", failing, err)
				}
				if _, err := objects.Get(t.Context(), o, ref); err != nil {
					t.Fatalf("get after second put: %v", err)
				}
			}
		})
	}
}

// TestObjectsWriteInFlight: a replicated stream may refuse with code 10164 because of a write that later fails; the
// put goes on by itself, and gives up as unavailable when that never ends.
func TestObjectsWriteInFlight(t *testing.T) {
	_, h := oneServerObjects(t)
	inFlight := &natsjs.APIError{Code: 400, ErrorCode: codeWriteInFlight, Description: "wrong last sequence"}
	once := &faultyJetStream{JetStream: h.js, failing: 0, err: fmt.Errorf("nats: %w", inFlight)}
	ref, err := objects.Put(t.Context(), NewObjects(once), "text/plain", []byte("patience"))
	if err != nil {
		t.Fatalf("put: %v", err)
	}
	if _, err := objects.Get(t.Context(), NewObjects(h.js), ref); err != nil {
		t.Fatalf("get: %v", err)
	}
	if _, err := objects.Put(t.Context(), NewObjects(alwaysFailing{h.js, inFlight}), "text/plain", []byte("no end")); !errors.Is(err, objects.ErrUnavailable) {
		t.Fatalf("put that is refused for ever: %v", err)
	}
}

type alwaysFailing struct {
	natsjs.JetStream
	err error
}

func (f alwaysFailing) PublishMsg(context.Context, *nats.Msg, ...natsjs.PublishOpt) (*natsjs.PubAck, error) {
	return nil, f.err
}

// TestObjectsAPIPrefix: the store reaches the API where the client was told that it is.
func TestObjectsAPIPrefix(t *testing.T) {
	s := objectsServer(t, func(o *server.Options) { o.JetStreamDomain = "leaf" })
	nc := objectsConnect(t, s).Conn()
	for name, open := range map[string]func() (natsjs.JetStream, error){
		"domain": func() (natsjs.JetStream, error) { return natsjs.NewWithDomain(nc, "leaf") },
		"prefix": func() (natsjs.JetStream, error) { return natsjs.NewWithAPIPrefix(nc, "$JS.leaf.API") },
	} {
		t.Run(name, func(t *testing.T) {
			js, err := open()
			if err != nil {
				t.Fatal(err)
			}
			createObjects(t, js, ObjectsConfig(1))
			o := NewObjects(js)
			ref, err := objects.Put(t.Context(), o, "text/plain", []byte(name))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := objects.Get(t.Context(), o, ref); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestObjectsPermissions: what the doc comment says a reader and a writer need is enough, and a reader cannot write.
func TestObjectsPermissions(t *testing.T) {
	read := []string{"$JS.API.DIRECT.GET.OBJECTS.>", "$JS.API.STREAM.MSG.GET.OBJECTS"}
	user := func(name string, publish []string) *server.User {
		return &server.User{Username: name, Password: name, Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: publish},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}}
	}
	s := objectsServer(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "operator", Password: "operator"},
			user("reader", read),
			user("writer", append([]string{ObjectsSubjects}, read...)),
		}
	})
	createObjects(t, objectsConnect(t, s, nats.UserInfo("operator", "operator")), ObjectsConfig(1))
	writer := NewObjects(objectsConnect(t, s, nats.UserInfo("writer", "writer")))
	data := objectstest.Random(3*objectChunkBytes, 6)
	ref, err := objects.Put(t.Context(), writer, "text/plain", data)
	if err != nil {
		t.Fatal(err)
	}
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	reader := NewObjects(objectsConnect(t, s, nats.UserInfo("reader", "reader"), quiet))
	if _, err := objects.Get(t.Context(), reader, ref); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := objects.Put(ctx, reader, "text/plain", []byte("not allowed")); err == nil {
		t.Error("a reader has put an object")
	}
}

func TestObjectsLeavesNoGoroutines(t *testing.T) {
	o, _ := oneServerObjects(t)
	data := objectstest.Random(9*objectChunkBytes, 7)
	if _, err := objects.Put(t.Context(), o, "text/plain", data[1:]); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	ref, err := objects.Put(t.Context(), o, "text/plain", data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Get(t.Context(), o, ref); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, before)
}

func BenchmarkObjects(b *testing.B) {
	o, _ := oneServerObjects(b)
	objectstest.Benchmark(b, o)
}
