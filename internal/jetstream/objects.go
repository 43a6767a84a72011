package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/pkg/objects"
)

const (
	// ObjectsStream is the name of the stream that holds the objects.
	ObjectsStream = "OBJECTS"

	// ObjectsSubjects is what the stream captures: object.<sha256>.<chunk number> and object.<sha256>.manifest.
	ObjectsSubjects = "object.*.*"

	// objectParallel is how many chunks of one object are written or read at a time.
	objectParallel = 8

	// objectAttempts bounds how often one part is published while other writers are at the same subject.
	objectAttempts = 8

	// objectBackoff is the wait before the second attempt; it doubles with each one.
	objectBackoff = 5 * time.Millisecond

	// objectFirstAlloc is how much is allocated on a manifest's word alone. Beyond it memory grows with verified bytes.
	objectFirstAlloc = 8 << 20
)

// The server's error codes that the object store tells apart.
const (
	codeAccountResources  natsjs.ErrorCode = 10002
	codeServerResources   natsjs.ErrorCode = 10023
	codeMemoryResources   natsjs.ErrorCode = 10028
	codeNoMessage         natsjs.ErrorCode = 10037
	codeStorageResources  natsjs.ErrorCode = 10047
	codeMessageTooLarge   natsjs.ErrorCode = 10054
	codeWrongLastSequence natsjs.ErrorCode = 10071
	codeStoreFailed       natsjs.ErrorCode = 10077
	codeWriteInFlight     natsjs.ErrorCode = 10164
)

const (
	objectNoRoomRemedy     = "raise max_bytes of stream OBJECTS, the account's storage limit or the server's max_file_store"
	objectNoResponseRemedy = "create stream OBJECTS in this account, or check that its servers are up"
)

// ObjectsConfig returns the configuration of the OBJECTS stream. Nothing in it evicts: a stream without room refuses
// (an operator may set MaxBytes). Chunks are compressed by the writer, so the stream is not. Deleting is left to
// permissions, because objects that nothing refers to any more may be removed by an operator.
func ObjectsConfig(replicas int) natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              ObjectsStream,
		Description:       "immutable objects by SHA-256: chunks, then a manifest",
		Subjects:          []string{ObjectsSubjects},
		Retention:         natsjs.LimitsPolicy,
		Discard:           natsjs.DiscardNew,
		Storage:           natsjs.FileStorage,
		Compression:       natsjs.NoCompression,
		Replicas:          replicas,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        1 + objectChunkBytes + objectHeaderRoom,
		AllowDirect:       true,
	}
}

// Objects is the [objects.Store] in the OBJECTS stream. It is safe for concurrent use, by any number of processes.
//
// An object is its chunks, in any order, and then its manifest, each put only if absent; of several messages on one
// subject the last one counts. It starts to exist with the manifest, which is published when every chunk has been
// acknowledged or read back. A put that finds an object already there reads and checks it, and replaces damaged
// parts; each replacement is fenced by the sequence of the message it replaces.
//
// Reads are direct gets, which any replica may answer. Absence and damage are believed only from the stream's leader, and of a
// mirror when it has everything that the stream has which it mirrors; until then Get says [objects.ErrUnavailable].
// A writer needs to publish object.*.*; a reader needs the API subjects DIRECT.GET.OBJECTS.> and STREAM.MSG.GET.OBJECTS;
// a writer needs both.
type Objects struct {
	js     natsjs.JetStream
	prefix string // of API subjects, with the final dot
	codec  *objectCodec
	// current returns nil when what the stream lacks is known to be missing. Nil: it is no mirror.
	current func(ctx context.Context) error
}

var _ objects.Store = (*Objects)(nil)

// NewObjects returns the object store in the OBJECTS stream of js, which must have been created with [ObjectsConfig].
// It does not touch the server: a missing stream shows as [objects.ErrUnavailable] on use.
func NewObjects(js natsjs.JetStream) *Objects {
	prefix := natsjs.DefaultAPIPrefix
	switch opts := js.Options(); {
	case opts.Domain != "":
		prefix = "$JS." + opts.Domain + ".API."
	case opts.APIPrefix != "":
		prefix = strings.TrimSuffix(opts.APIPrefix, ".") + "."
	}
	return &Objects{js: js, prefix: prefix, codec: newObjectCodec(objectParallel)}
}

// Put implements [objects.Store].
func (o *Objects) Put(ctx context.Context, ref objects.Ref, data []byte) error {
	if err := objects.CheckPut(ctx, ref, data); err != nil {
		return fmt.Errorf("stream %s: %w", ObjectsStream, err)
	}
	want := newObjectManifest(ref, data)
	encoded := want.encode()
	if err := o.checkPayload(max(len(encoded), 1+min(len(data), objectChunkBytes))); err != nil {
		return fmt.Errorf("stream %s: %w", ObjectsStream, err)
	}
	manifest := objectPart{
		subject: objectSubject(ref.Digest, objectManifestName),
		message: func() []byte { return encoded },
		check:   want.sameObject,
	}
	found, err := o.last(ctx, manifest.subject)
	if err != nil {
		return fmt.Errorf("stream %s: read manifest: %w", ObjectsStream, err)
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(objectParallel)
	for n := range want.chunks {
		group.Go(func() error {
			if err := o.place(gctx, o.chunkPart(&want, data, n), found.seq > 0); err != nil {
				return fmt.Errorf("chunk %d: %w", n, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("stream %s: %w", ObjectsStream, err)
	}
	if err := o.place(ctx, manifest, found.seq > 0); err != nil {
		return fmt.Errorf("stream %s: manifest: %w", ObjectsStream, err)
	}
	return nil
}

// Get implements [objects.Store]. Every chunk is checked against its digest in the manifest.
func (o *Objects) Get(ctx context.Context, d objects.Digest) ([]byte, error) {
	data, err := o.get(ctx, d)
	if o.current == nil || !errors.Is(err, objects.ErrNotFound) && !errors.Is(err, objects.ErrCorrupt) {
		return data, err
	}
	if behind := o.current(ctx); behind != nil {
		return nil, fmt.Errorf("%w: %s is not here: %w", objects.ErrUnavailable, d, behind)
	}
	return o.get(ctx, d)
}

func (o *Objects) get(ctx context.Context, d objects.Digest) ([]byte, error) {
	m, found, err := o.manifest(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", ObjectsStream, err)
	}
	if !found {
		return nil, fmt.Errorf("stream %s: %w", ObjectsStream, objects.ErrNotFound)
	}
	data := make([]byte, 0, min(m.ref.Bytes, objectFirstAlloc))
	for lo := 0; lo < len(m.chunks); lo += objectParallel {
		hi := min(lo+objectParallel, len(m.chunks))
		start := len(data)
		end := start + (hi-lo-1)*objectChunkBytes + m.chunkBytes(hi-1)
		if end > cap(data) {
			grown := make([]byte, start, min(m.ref.Bytes, 4*int64(cap(data))))
			copy(grown, data)
			data = grown
		}
		data = data[:end]
		group, gctx := errgroup.WithContext(ctx)
		for n := lo; n < hi; n++ {
			dst := data[start+(n-lo)*objectChunkBytes:]
			group.Go(func() error { return o.readChunk(gctx, &m, n, dst[:m.chunkBytes(n)]) })
		}
		if err := group.Wait(); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("stream %s: %w", ObjectsStream, err)
		}
	}
	return data, nil
}

// Has implements [objects.Store].
func (o *Objects) Has(ctx context.Context, d objects.Digest) (bool, error) {
	_, found, err := o.manifest(ctx, d)
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", ObjectsStream, err)
	}
	return found, nil
}

// checkPayload reports whether the server accepts messages of n bytes; asking first gives the better message.
func (o *Objects) checkPayload(n int) error {
	if limit := o.js.Conn().MaxPayload(); limit > 0 && int64(n+objectHeaderRoom) > limit {
		return fmt.Errorf("%w for a server whose max_payload is %d bytes: set it to at least %d",
			objects.ErrTooLarge, limit, 1+objectChunkBytes+objectHeaderRoom)
	}
	return nil
}

// manifest reads the manifest of d; found is false when the leader has none.
func (o *Objects) manifest(ctx context.Context, d objects.Digest) (m objectManifest, found bool, err error) {
	found, err = o.read(ctx, objectSubject(d, objectManifestName), func(msg []byte) (err error) {
		m, err = decodeObjectManifest(d, msg)
		return err
	})
	if bad, ok := errors.AsType[*badPartError](err); ok {
		err = &objects.CorruptError{Digest: d, Part: objectManifestName, Cause: bad.cause}
	}
	return m, found, err
}

// readChunk reads chunk n of m into dst, which has its raw length.
func (o *Objects) readChunk(ctx context.Context, m *objectManifest, n int, dst []byte) error {
	found, err := o.read(ctx, objectChunkSubject(m.ref.Digest, n), func(msg []byte) error {
		return o.codec.check(dst, msg, m.chunks[n])
	})
	var cause error
	switch bad, ok := errors.AsType[*badPartError](err); {
	case ok:
		cause = bad.cause
	case err != nil:
		return fmt.Errorf("chunk %d: %w", n, err)
	case !found:
		cause = errors.New("it is missing although the manifest is there")
	default:
		return nil
	}
	return &objects.CorruptError{Digest: m.ref.Digest, Part: "chunk " + strconv.Itoa(n), Cause: cause}
}

// check decodes a chunk's message into dst and compares the digest of the raw bytes.
func (c *objectCodec) check(dst, msg []byte, want objects.Digest) error {
	if err := c.decode(dst, msg); err != nil {
		return err
	}
	if got := objects.Sum(dst); got != want {
		return fmt.Errorf("its raw bytes have digest %s, the manifest says %s", got, want)
	}
	return nil
}

// sameObject reports whether msg is a manifest of the object of m. The media type is not the object's: the first
// writer's stays.
func (m *objectManifest) sameObject(msg []byte) error {
	got, err := decodeObjectManifest(m.ref.Digest, msg)
	if err != nil {
		return err
	}
	if got.ref.Bytes != m.ref.Bytes {
		return fmt.Errorf("it states %d bytes instead of %d", got.ref.Bytes, m.ref.Bytes)
	}
	for n, d := range got.chunks {
		if d != m.chunks[n] {
			return fmt.Errorf("it states digest %s for chunk %d instead of %s", d, n, m.chunks[n])
		}
	}
	return nil
}

// objectPart is one message to be put: a chunk or the manifest.
type objectPart struct {
	subject string
	message func() []byte
	check   func(msg []byte) error // whether a stored message serves as this part
}

func (o *Objects) chunkPart(m *objectManifest, data []byte, n int) objectPart {
	raw := objectChunk(data, n)
	return objectPart{
		subject: objectChunkSubject(m.ref.Digest, n),
		message: func() []byte { return o.codec.encode(raw) },
		check: func(msg []byte) error {
			return o.codec.check(make([]byte, len(raw)), msg, m.chunks[n])
		},
	}
}

// place makes the last message on the part's subject serve as the part. Parts that are probably there already are
// looked for first; the others are published at once, and looked at when the server says that something is there.
func (o *Objects) place(ctx context.Context, part objectPart, lookFirst bool) error {
	var fence uint64
	if lookFirst {
		there, seq, err := o.look(ctx, part)
		if err != nil || there {
			return err
		}
		fence = seq
	}
	msg := &nats.Msg{Subject: part.subject, Data: part.message()}
	for attempt := range objectAttempts {
		_, err := o.js.PublishMsg(ctx, msg,
			natsjs.WithExpectStream(ObjectsStream), natsjs.WithExpectLastSequencePerSubject(fence))
		if err == nil {
			return nil
		}
		if !isObjectConflict(err) {
			return objectError(ctx, "publish", err)
		}
		there, seq, err := o.look(ctx, part)
		if err != nil || there {
			return err // there: somebody else has put it
		}
		if seq != fence {
			fence = seq // a wrong message: replace exactly that one
			continue
		}
		// Another write to the subject is in flight, and may yet fail.
		if err := objectWait(ctx, objectBackoff<<attempt); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: other writers were at %s during %d attempts", objects.ErrUnavailable, part.subject, objectAttempts)
}

// look reports whether the part is there; if not, seq is the sequence of the wrong message in its place, 0 for none.
func (o *Objects) look(ctx context.Context, part objectPart) (there bool, seq uint64, err error) {
	found, err := o.read(ctx, part.subject, part.check)
	if bad, ok := errors.AsType[*badPartError](err); ok {
		return false, bad.seq, nil
	}
	return found && err == nil, 0, err
}

func objectWait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// badPartError says that the leader's last message on a subject does not pass its check.
type badPartError struct {
	seq   uint64
	cause error
}

func (e *badPartError) Error() string { return e.cause.Error() }

func (e *badPartError) Unwrap() error { return e.cause }

// read finds the last message on subject and checks it. A replica that lags may have nothing or an older message, so
// the leader is asked before either is believed: found is false when the leader has none, and the error is a
// *badPartError when the leader's does not pass.
func (o *Objects) read(ctx context.Context, subject string, check func(msg []byte) error) (found bool, err error) {
	msg, err := o.lastDirect(ctx, subject)
	if err != nil {
		return false, err
	}
	if msg.seq > 0 && check(msg.data) == nil {
		return true, nil
	}
	if msg, err = o.lastAtLeader(ctx, subject); err != nil || msg.seq == 0 {
		return false, err
	}
	if err := check(msg.data); err != nil {
		return true, &badPartError{seq: msg.seq, cause: err}
	}
	return true, nil
}

// last returns the last message on subject, from the leader if no other replica has one, or none answers yet: in a
// cluster the servers learn only a moment after a stream was made that its replicas answer.
func (o *Objects) last(ctx context.Context, subject string) (storedMessage, error) {
	msg, err := o.lastDirect(ctx, subject)
	if err == nil && msg.seq == 0 || errors.Is(err, nats.ErrNoResponders) {
		return o.lastAtLeader(ctx, subject)
	}
	return msg, err
}

// storedMessage is a message of the stream; sequence 0 means that there is none.
type storedMessage struct {
	seq  uint64
	data []byte
}

// lastDirect returns the last message on subject that some replica has.
func (o *Objects) lastDirect(ctx context.Context, subject string) (storedMessage, error) {
	resp, err := o.request(ctx, "DIRECT.GET."+ObjectsStream+"."+subject, nil)
	if err != nil {
		return storedMessage{}, err
	}
	if len(resp.Data) == 0 {
		switch status := resp.Header.Get("Status"); status {
		case "":
		case "404":
			return storedMessage{}, nil
		default:
			return storedMessage{}, fmt.Errorf("%w: direct get: %s %s", objects.ErrUnavailable, status, resp.Header.Get("Description"))
		}
	}
	seq, err := strconv.ParseUint(resp.Header.Get(natsjs.SequenceHeader), 10, 64)
	if err != nil || seq == 0 {
		return storedMessage{}, fmt.Errorf("%w: direct get: an answer without a sequence", objects.ErrUnavailable)
	}
	return storedMessage{seq: seq, data: resp.Data}, nil
}

// lastAtLeader returns the last message on subject that the leader has.
func (o *Objects) lastAtLeader(ctx context.Context, subject string) (storedMessage, error) {
	ask, err := json.Marshal(struct {
		LastFor string `json:"last_by_subj"`
	}{subject})
	if err != nil {
		return storedMessage{}, fmt.Errorf("encode message request: %w", err)
	}
	resp, err := o.request(ctx, "STREAM.MSG.GET."+ObjectsStream, ask)
	if err != nil {
		return storedMessage{}, err
	}
	var answer struct {
		Error   *natsjs.APIError `json:"error"`
		Message *struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(resp.Data, &answer); err != nil {
		return storedMessage{}, fmt.Errorf("%w: message get: %w", objects.ErrUnavailable, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == codeNoMessage:
		return storedMessage{}, nil
	case answer.Error != nil:
		return storedMessage{}, objectError(ctx, "message get", answer.Error)
	case answer.Message == nil || answer.Message.Seq == 0:
		return storedMessage{}, fmt.Errorf("%w: message get: an answer without a message", objects.ErrUnavailable)
	}
	return storedMessage{seq: answer.Message.Seq, data: answer.Message.Data}, nil
}

// request asks the JetStream API. A context without a deadline gets the client's default timeout.
func (o *Objects) request(ctx context.Context, api string, body []byte) (*nats.Msg, error) {
	bounded := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, o.js.Options().DefaultTimeout)
		defer cancel()
	}
	resp, err := o.js.Conn().RequestWithContext(bounded, o.prefix+api, body)
	if err != nil {
		return nil, objectError(ctx, "read", err)
	}
	return resp, nil
}

// isObjectConflict reports whether a publish was refused because the subject's last message is not the expected one.
func isObjectConflict(err error) bool {
	api, ok := errors.AsType[*natsjs.APIError](err)
	return ok && (api.ErrorCode == codeWrongLastSequence || api.ErrorCode == codeWriteInFlight)
}

// objectError turns a failure of the client or the server into the sentinel that says what to do about it.
func objectError(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, ctx.Err())
	}
	if api, ok := errors.AsType[*natsjs.APIError](err); ok {
		switch {
		case objectNoRoom(api):
			return fmt.Errorf("%s: %w: %s: %w", op, objects.ErrFull, objectNoRoomRemedy, err)
		case api.ErrorCode == codeMessageTooLarge:
			return fmt.Errorf("%s: %w: raise max_msg_size of stream %s: %w", op, objects.ErrTooLarge, ObjectsStream, err)
		}
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%s: %w: raise max_payload of the server: %w", op, objects.ErrTooLarge, err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, natsjs.ErrNoStreamResponse):
		return fmt.Errorf("%s: %w: %s: %w", op, objects.ErrUnavailable, objectNoResponseRemedy, err)
	default:
		return fmt.Errorf("%s: %w: %w", op, objects.ErrUnavailable, err)
	}
}

// objectNoRoom reports whether the server refused for want of room.
func objectNoRoom(api *natsjs.APIError) bool {
	switch api.ErrorCode {
	case codeAccountResources, codeServerResources, codeMemoryResources, codeStorageResources:
		return true
	case codeStoreFailed:
		// One code for everything that the storage refuses; only the text tells a limit from a defect.
		return strings.HasPrefix(api.Description, "maximum ") || strings.Contains(api.Description, "no space left")
	default:
		return false
	}
}
