package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/pkg/events"
)

// newSessionInput returns a command that sends an input to a session that is there.
func (g *globals) newSessionInput(use, short, long, wait string, args cobra.PositionalArgs, input func(*cobra.Command, []string) (*events.Input, error)) *cobra.Command {
	var limit waitFlag
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: args, ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseSession(args[0])
			if err != nil {
				return err
			}
			in, err := input(cmd, args[1:])
			if err != nil {
				return err
			}
			return g.publish(cmd, id, in, time.Duration(limit), true)
		},
	}
	limit.flag(cmd, wait)
	return cmd
}

// newSessionMessage returns a command that sends a message for the model.
func (g *globals) newSessionMessage(kind events.InputKind, use, short, long, wait string) *cobra.Command {
	var m messageFlags
	cmd := g.newSessionInput(use, short, long, wait, cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) (*events.Input, error) {
		in := &events.Input{Kind: kind}
		return in, m.message(cmd, args, in)
	})
	m.flags(cmd, "the text")
	return cmd
}

func newSessionSend(g *globals) *cobra.Command {
	return g.newSessionMessage(events.InputPrompt, "send SESSION [TEXT]", "Send a prompt to a session",
		"Sends a prompt, which opens the session's next turn. Prompts are used one after another, each in a turn of its own.",
		"for the turn to end, and print what is said")
}

func newSessionSteer(g *globals) *cobra.Command {
	return g.newSessionMessage(events.InputSteer, "steer SESSION [TEXT]", "Say something that the model reads in its next step, now",
		"Sends a message for the next step: in the middle of a turn the model reads it as soon as the answer and the tools that are\n"+
			"under way are done, and a turn does not end before. A session at rest opens a turn for it.",
		"for the message to enter the conversation")
}

func newSessionInject(g *globals) *cobra.Command {
	return g.newSessionMessage(events.InputInject, "inject SESSION [TEXT]", "Leave something that the model reads in its next step, whenever that is",
		"Sends a message for the next step, as refold session steer does, but keeps no turn open and wakes no session: one at rest\n"+
			"keeps it until its next turn.",
		"for the message to enter the conversation")
}

func newSessionCancel(g *globals) *cobra.Command {
	var cause string
	var keep bool
	cmd := g.newSessionInput("cancel SESSION", "Stop the turn that runs, and drop the inputs that wait",
		"Records the cancel, stops the model's answer and the tools that run, and ends the turn; what was said until then stays in the\n"+
			"conversation. Messages and compactions that were sent before and are not used yet are dropped, or, with --keep-queue, used next.",
		"for the turn to have ended", cobra.ExactArgs(1), func(*cobra.Command, []string) (*events.Input, error) {
			return &events.Input{Kind: events.InputCancel, Cause: events.TextFromBytes([]byte(cause)), KeepQueue: keep}, nil
		})
	cmd.Flags().StringVar(&cause, "cause", "asked to", "why, for the log")
	cmd.Flags().BoolVar(&keep, "keep-queue", false, "keep the inputs that wait")
	return cmd
}

func newSessionCompact(g *globals) *cobra.Command {
	return g.newSessionInput("compact SESSION", "Put a summary in the place of a session's older conversation",
		"Has the model summarise the older part of the conversation, between two turns, and goes on with the summary in its place. The\n"+
			"log keeps everything. With --wait it prints the outcome, and the exit code is not 0 unless that is \"completed\".",
		"for the compaction to end", cobra.ExactArgs(1), func(*cobra.Command, []string) (*events.Input, error) {
			return &events.Input{Kind: events.InputCompact}, nil
		})
}

func newSessionConfigure(g *globals) *cobra.Command {
	var o optionFlags
	cmd := g.newSessionInput("configure SESSION", "Change a session's options from its next turn on", "",
		"for the change to be recorded", cobra.ExactArgs(1), func(cmd *cobra.Command, _ []string) (*events.Input, error) {
			options, err := o.changed(cmd)
			return &events.Input{Kind: events.InputConfigure, Options: options}, err
		})
	o.flags(cmd)
	return cmd
}

func newSessionClose(g *globals) *cobra.Command {
	var reason string
	cmd := g.newSessionInput("close SESSION", "Close a session: it takes no more inputs", "",
		"for the session to be closed", cobra.ExactArgs(1), func(*cobra.Command, []string) (*events.Input, error) {
			return &events.Input{Kind: events.InputClose, Reason: events.TextFromBytes([]byte(reason))}, nil
		})
	cmd.Flags().StringVar(&reason, "reason", "asked to", "why, for the log")
	return cmd
}
