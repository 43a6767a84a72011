package audit_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// provocation returns a check that finds one thing.
type provocation func() audit.LogCheck

// ruleCases returns what provokes each rule with its result, by "rule/result".
func ruleCases(t *testing.T) map[string]provocation {
	t.Helper()
	cases := make(map[string]provocation)
	for _, more := range []map[string]provocation{orderCases(), callCases(), messageCases(), bodyCases(), signedCases(t), witnessCases(t)} {
		for name, provoke := range more {
			if _, twice := cases[name]; twice {
				t.Fatalf("two cases for %s", name)
			}
			cases[name] = provoke
		}
	}
	return cases
}

// behind returns the check of a log behind which stands an event that the log refuses.
func behind(l *foldtest.Log, body events.Body, opts ...foldtest.Option) audit.LogCheck {
	e, payload, err := l.Build(body, opts...)
	if err != nil {
		panic(err)
	}
	s := audittest.Of("", l)
	s.Messages = append(s.Messages, eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: payload})
	return s.LogCheck()
}

func started() *foldtest.Log {
	l := foldtest.New()
	l.Body = audittest.Bodies()
	l.Begin()
	return l
}

func stepping() *foldtest.Log {
	l := started()
	l.TurnStart()
	l.StepStart()
	return l
}

func asking() *foldtest.Log {
	l := stepping()
	l.User("hello")
	l.Header(foldtest.Header())
	return l
}

func calling() *foldtest.Log {
	l := asking()
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call-1", "read", `{"path":"a"}`))
	return l
}

// orderCases break the rules of what stands where.
func orderCases() map[string]provocation {
	message := func(text string) *events.UserMessage {
		return &events.UserMessage{Message: events.Message{
			ID: "m", Role: events.RoleUser, Content: []events.Block{events.Text(text)}, Source: events.Source{Kind: events.SourcePlugin, Plugin: "p"},
		}}
	}
	return map[string]provocation{
		"first/invalid-log": func() audit.LogCheck {
			c := audittest.Of("", started()).LogCheck()
			c.Session = foldtest.ID(1, 1)
			return c
		},
		"seed/invalid-log": func() audit.LogCheck { return behind(started(), new(events.SessionEndSeed)) },
		"closed/invalid-log": func() audit.LogCheck {
			l := started()
			l.Closed("done")
			return behind(l, &events.TurnStart{Turn: 1})
		},
		"claim/invalid-log": func() audit.LogCheck {
			l := foldtest.New()
			l.Created(events.Options{})
			return behind(l, &events.TurnStart{Turn: 1})
		},
		"input/invalid-log": func() audit.LogCheck {
			l := started()
			l.Configured(events.Options{Model: "deepseek-chat"})
			return behind(l, &events.SessionConfigured{Claim: foldtest.ClaimAt(1)})
		},
		"cancel/invalid-log": func() audit.LogCheck {
			l := stepping()
			l.Cancel("user", false)
			return behind(l, message("too late"))
		},
		"turn/invalid-log":    func() audit.LogCheck { return behind(started(), &events.TurnStart{Turn: 2}) },
		"step/invalid-log":    func() audit.LogCheck { return behind(started(), &events.StepStart{Turn: 1, Step: 1}) },
		"message/invalid-log": func() audit.LogCheck { return behind(started(), message("outside of a step")) },
		"header/invalid-log": func() audit.LogCheck {
			return behind(stepping(), &events.RequestHeader{Header: foldtest.Header(), Reason: events.HeaderResume})
		},
		"config/invalid-log": func() audit.LogCheck {
			h := foldtest.Header()
			h.Config.Model = "deepseek-reasoner"
			return behind(stepping(), &events.RequestHeader{Header: h, Reason: events.HeaderInitial})
		},
		"context/invalid-log": func() audit.LogCheck {
			return behind(stepping(), &events.RequestContext{Provider: "deepseek", Model: "deepseek-chat", ContextWindow: 1})
		},
		"images/invalid-log": func() audit.LogCheck {
			l := asking()
			shown := foldtest.Placeholder(objects.Sum([]byte("image")), "[image]")
			l.Images(shown)
			return behind(l, &events.RequestImages{Images: []events.ImageShown{shown}})
		},
		"replace/invalid-log": func() audit.LogCheck {
			return behind(asking(), message("in the place of nothing"), foldtest.Replacing(1, 1), foldtest.Citing(1))
		},
		"compaction/invalid-log": func() audit.LogCheck {
			return behind(started(), &events.CompactionEnd{CompactionID: "none", Outcome: events.CompactionCompleted})
		},
	}
}

// callCases break the rules of model calls and tools.
func callCases() map[string]provocation {
	return map[string]provocation{
		"stream/invalid-log": func() audit.LogCheck {
			l := asking()
			b := l.StreamBody()
			b.Attempt++
			return behind(l, b)
		},
		"chunk/invalid-log": func() audit.LogCheck {
			chunks := []events.Chunk{foldtest.FinishChunk(events.FinishStop)}
			return behind(asking(), &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1, Chunks: chunks})
		},
		"answer/invalid-log": func() audit.LogCheck {
			l := asking()
			l.Stream()
			l.Chunks(append(foldtest.TextBlock(0, "hi"), foldtest.FinishChunk(events.FinishStop))...)
			b, citing := l.AnswerBody()
			b.Message.Content = []events.Block{events.Text("ho")}
			return behind(l, b, citing)
		},
		"failure/invalid-log": func() audit.LogCheck {
			failure := events.Failure{Message: "no", Code: events.FailureServer}
			return behind(asking(), &events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: failure})
		},
		"call/invalid-log": func() audit.LogCheck {
			return behind(calling(), &events.ToolCall{Turn: 1, Step: 1, CallID: "call-1", Name: "read", Arguments: `{"path":"b"}`})
		},
		"result/invalid-log": func() audit.LogCheck {
			l := calling()
			l.ToolCall()
			return behind(l, &events.ToolResult{Turn: 1, Step: 1, Message: events.Message{
				ID: "r", Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: "call-2"},
				Content: []events.Block{{Type: events.BlockToolResult, ToolCallID: "call-2", Content: []events.Block{events.Text("for another")}}},
			}}, foldtest.Citing(l.Len()))
		},
		"id/invalid-log": func() audit.LogCheck {
			l := calling()
			first := l.Events[0].ID
			return behind(l, &events.SessionTitle{Title: "again"}, func(e *events.Event) { e.ID = first })
		},
		"earlier/": func() audit.LogCheck {
			l := asking()
			l.Title("twice")
			l.Events[len(l.Events)-1].ID = l.Events[0].ID
			payload, err := events.Encode(&l.Events[len(l.Events)-1])
			if err != nil {
				panic(err)
			}
			l.Payloads[len(l.Payloads)-1] = payload
			return behind(l, l.StreamBody())
		},
	}
}

// messageCases break the rules between a log and its messages.
func messageCases() map[string]provocation {
	last := func(change func(m *eventlog.Message)) provocation {
		return func() audit.LogCheck {
			s := audittest.Of("", audittest.Sample(foldtest.SessionID))
			change(&s.Messages[len(s.Messages)-1])
			return s.LogCheck()
		}
	}
	return map[string]provocation{
		"sequence/broken-chain": last(func(m *eventlog.Message) { m.Seq++ }),
		"message/broken-chain":  last(func(m *eventlog.Message) { m.Type = events.TypeTurnStart }),
		"payload/invalid-log":   last(func(m *eventlog.Message) { m.Payload = append(m.Payload, ' ') }),
		"version/invalid-log":   last(replace(`{"v":1`, `{"v":2`)),
		"chain/broken-chain": last(func(m *eventlog.Message) {
			e, err := m.Event()
			if err != nil {
				panic(err)
			}
			e.Prev[0] ^= 1
			if m.Payload, err = events.Encode(&e); err != nil {
				panic(err)
			}
		}),
	}
}

// bodyCases are about requests, and objects that they need.
func bodyCases() map[string]provocation {
	stored := func(change func(s *audittest.Store, d objects.Digest)) provocation {
		return func() audit.LogCheck {
			s := audittest.Of("", audittest.Sample(foldtest.SessionID))
			store := s.Store()
			change(store, s.Refs[0].Digest)
			c := s.LogCheck()
			c.Objects = audit.FromStore(store)
			return c
		}
	}
	same := func(b []byte) []byte { return b }
	return map[string]provocation{
		"/mismatch": func() audit.LogCheck {
			l, _ := lying(2, "deepseek-chat/1", func(b []byte) []byte { return b[:len(b)-1] })
			return audittest.Of("", l).LogCheck()
		},
		"/unknown-codec": func() audit.LogCheck {
			l, _ := lying(2, "deepseek-chat/99", same)
			return audittest.Of("", l).LogCheck()
		},
		"/missing-object": stored(func(s *audittest.Store, d objects.Digest) { s.Missing = map[objects.Digest]bool{d: true} }),
		"/corrupt-object": stored(func(s *audittest.Store, d objects.Digest) {
			s.Altered = map[objects.Digest][]byte{d: []byte("another")}
		}),
		"/could-not-check": stored(func(s *audittest.Store, _ objects.Digest) { s.Fail = objects.ErrUnavailable }),
		"codec/invalid-log": func() audit.LogCheck {
			l := stepping()
			l.UserBlocks(l.ImageBlock([]byte("an image that nobody shows"), 1, 1))
			l.Header(foldtest.Header())
			l.Body = nil
			b := l.StreamBody()
			b.Codec = "deepseek-chat/1"
			return behind(l, b)
		},
		"lineage/invalid-log": func() audit.LogCheck {
			_, fork := audittest.Forked()
			c := audittest.Of("", fork).LogCheck()
			c.Parents = func(context.Context, events.ID, uint64) (events.Hash, error) { return events.Hash{1}, nil }
			return c
		},
		"withheld/could-not-check": func() audit.LogCheck {
			s := audittest.Of("", audittest.Sample(foldtest.SessionID))
			w, err := audit.NewWithholding([]events.Type{events.TypeUserMessage})
			if err != nil {
				panic(err)
			}
			commitments := make(map[uint64]audit.Commitment)
			for i := range s.Messages {
				m, c, ok, err := w.Withhold(&s.Messages[i])
				if err != nil {
					panic(err)
				}
				if ok {
					s.Messages[i], commitments[m.Seq] = m, c
				}
			}
			c := s.LogCheck()
			c.Withheld = &audit.Withheld{Withholding: w, Commitment: func(seq uint64) (audit.Commitment, bool) {
				c, ok := commitments[seq]
				return c, ok
			}}
			return c
		},
	}
}

// signedCases are about what verifiers have signed.
func signedCases(t *testing.T) map[string]provocation {
	t.Helper()
	key := newKey(t)
	forged := func(change func(v *audit.Verdict)) provocation {
		return func() audit.LogCheck {
			s := audittest.Of("", audittest.Sample(foldtest.SessionID))
			c := s.LogCheck()
			c.Prior = s.Sign(t.Context(), key)
			change(&c.Prior[0])
			return c
		}
	}
	return map[string]provocation{
		"signed/broken-chain": forged(func(v *audit.Verdict) {
			v.Chain[0] ^= 1
			if err := key.Sign(v); err != nil {
				panic(err)
			}
		}),
		"signature/could-not-check": forged(func(v *audit.Verdict) {
			v.Signature = bytes.Clone(v.Signature)
			v.Signature[0] ^= 1
		}),
	}
}

// witnessCases are about what passed a witness.
func witnessCases(t *testing.T) map[string]provocation {
	t.Helper()
	witness := newKey(t)
	seen := func(change func(s *audittest.Session, receipts []audit.PlacedReceipt) []audit.PlacedReceipt) provocation {
		return func() audit.LogCheck {
			s := audittest.Of("", audittest.Sample(foldtest.SessionID))
			c := s.LogCheck()
			c.Receipts, c.Witnesses = change(s, s.Receipts(witness)), []string{witness.Public()}
			return c
		}
	}
	// answered returns the index of the receipt of the first call that was answered.
	answered := func(s *audittest.Session, receipts []audit.PlacedReceipt) int {
		return slices.IndexFunc(receipts, func(p audit.PlacedReceipt) bool {
			return p.Receipt.Kind == audit.ReceiptRequest && p.Receipt.Seq > 0 && s.Answered(p.Receipt.Seq)
		})
	}
	resign := func(r *audit.Receipt) {
		if err := witness.SignReceipt(r); err != nil {
			panic(err)
		}
	}
	return map[string]provocation{
		"wire/mismatch": seen(func(s *audittest.Session, receipts []audit.PlacedReceipt) []audit.PlacedReceipt {
			r := &receipts[answered(s, receipts)].Receipt
			r.Body.SHA256[0] ^= 1
			resign(r)
			return receipts
		}),
		"unwitnessed/mismatch": seen(func(s *audittest.Session, receipts []audit.PlacedReceipt) []audit.PlacedReceipt {
			i := answered(s, receipts)
			return slices.Delete(receipts, i, i+1)
		}),
		"unlogged/mismatch": seen(func(s *audittest.Session, receipts []audit.PlacedReceipt) []audit.PlacedReceipt {
			r := receipts[answered(s, receipts)]
			r.Place, r.Receipt.Seq = 1000, 1
			resign(&r.Receipt)
			return append(receipts, r)
		}),
		"repeated/mismatch": seen(func(s *audittest.Session, receipts []audit.PlacedReceipt) []audit.PlacedReceipt {
			r := receipts[answered(s, receipts)]
			r.Place = 1000
			return append(receipts, r)
		}),
	}
}
