package foldtest

import (
	"slices"
	"strconv"
	"strings"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// enter appends the messages of a step: inputs, what is owed, what plugins add, context.
func (g *generator) enter(first bool) {
	for g.one(4, "a steer or an inject") {
		if g.one(2, "inject") {
			g.InjectInput(Texts().Draw(g.t, "injected")...)
		} else {
			g.Steer(Texts().Draw(g.t, "steer")...)
		}
	}
	if g.one(6, "a prompt has to wait") {
		g.waiting = append(g.waiting, g.NextClaim())
		g.inbox++
	}
	if first {
		g.prompt()
	}
	if g.stopped() {
		return
	}
	g.PayContexts()
	if len(g.State.Nodes()) == 0 || g.one(4, "a plugin's message") {
		g.Inject(Text().Draw(g.t, "injected"))
	}
	if g.one(3, "context section") {
		name := rapid.SampledFrom([]string{"time", "files"}).Draw(g.t, "section")
		g.Section(name, Text().Draw(g.t, "section's text"))
	}
}

// prompt appends the turn's prompt, if it has one: the one that waits the longest, or a new one.
func (g *generator) prompt() {
	if g.one(5, "an input passed over") {
		g.inbox++
	}
	switch {
	case g.one(8, "no prompt"):
		g.Dropped(events.InputPrompt, "rejected")
	case len(g.waiting) > 0 && g.usable(g.waiting[0]):
		b := g.InputBody(events.DeliveryPrompt, events.Text("it waited"))
		b.InboxSeq, b.Message.ID = g.waiting[0].InboxSeq, string(g.waiting[0].InputID)
		g.waiting = g.waiting[1:]
		g.Append(b)
	case g.one(4, "object"):
		g.UserBlocks(events.Text("see the file"), g.object())
	case g.o.Images && g.one(3, "image"):
		g.UserBlocks(g.image(), events.Text("what is it?"), g.image())
	default:
		g.User(Texts().Draw(g.t, "user")...)
	}
}

// usable reports whether a prompt may still claim the input.
func (g *generator) usable(c events.Claim) bool {
	return g.State.Floor() <= c.InboxSeq && !g.State.PassedOver(c.InboxSeq, false)
}

// dropWaiting drops all inputs that wait, or those that no prompt may claim any more.
func (g *generator) dropWaiting(all bool) {
	g.waiting = slices.DeleteFunc(g.waiting, func(c events.Claim) bool {
		drop := all || !g.usable(c)
		if drop {
			g.Append(&events.InputDropped{Claim: c, Kind: events.InputPrompt, Cause: "it came too late"})
		}
		return drop
	})
}

// image draws one of a few images.
func (g *generator) image() events.Block {
	n := g.upTo(2, "image")
	return g.ImageBlock([]byte("image "+strconv.Itoa(n)), int64(1+n), 2)
}

// images says how every image on the surface is shown, and sometimes that one is shown in another way.
func (g *generator) images() {
	var list []events.ImageShown
	again := g.one(4, "show an image in another way")
	for _, m := range g.State.Messages().All() {
		for _, b := range m.Content {
			for _, c := range append(b.Content, b) {
				image := c.Object.Digest
				named := slices.ContainsFunc(list, func(s events.ImageShown) bool { return s.Image == image })
				if c.Type != events.BlockImage || named {
					continue
				}
				old, ok := g.State.Images().Shown(image)
				if shown := g.showing(image); !ok || again && shown != old {
					list = append(list, shown)
				}
			}
		}
	}
	if len(list) > 0 {
		g.Images(list...)
	}
}

func (g *generator) showing(image objects.Digest) events.ImageShown {
	switch g.upTo(2, "show an image") {
	case 0:
		return Placeholder(image, "[image]")
	case 1:
		return File(image, "file-"+strconv.Itoa(g.upTo(3, "file")))
	}
	return Inline(image, Text().Draw(g.t, "label"), g.Object([]byte("smaller "+image.String()), "image/jpeg"))
}

// object draws one of a few objects, so that some are named more than once.
func (g *generator) object() events.Block {
	return g.TextObject(strings.Repeat("large ", 1+g.upTo(3, "object")))
}
