package envoy

import (
	"fmt"
	"strings"
)

// The notes that depend on layout, body mode and vocabulary.

func (b *builder) failureNote() string {
	if b.Body == BodyFullDuplex {
		return "Helps requests without a body, and those that find no healthy router. A request whose body has begun to stream to a router that dies or " +
			"fails is answered with 500: what the router was handed is gone."
	}
	return "Fail open: with the router down, slow or wrong the request goes on to the fallback."
}

func (b *builder) processingNote() string {
	text := "Headers and the whole body of the request; nothing of the response, so that no answer waits for the router."
	if b.Body == BodyFullDuplex {
		text = "Headers, body and trailers of the request as they arrive; what the router sends back goes on to the engine. Nothing is held, so there is no buffer " +
			"filter, no bound of the body in Envoy, and no message_timeout."
	}
	if b.readsServed() {
		text = strings.Replace(text, "nothing of the response, so that no answer waits for the router", "of the answer its headers, with the endpoint that gave it", 1)
		if b.Body == BodyFullDuplex {
			text += " Of the answer its headers, with the endpoint that gave it."
		}
	}
	return text
}

func (b *builder) pingNote() string {
	if b.Body == BodyFullDuplex {
		return "Pings find a router whose process hangs: in full duplex nothing else ends the requests that wait for it, but the idle timeout."
	}
	return ""
}

func (b *builder) mutationNote() string {
	switch len(b.settable()) {
	case 0:
		return "The router can set no header: its choice comes in metadata. What it sets nevertheless is dropped, so engines do not see it."
	case 1:
		return "The router can set this header and nothing else."
	}
	return "The router can set these headers and nothing else."
}

func (b *builder) metadataNote() string {
	text := "Lets the decision into dynamic metadata, for the access log."
	if b.layout == LayoutOverride {
		text = "Lets the decision into dynamic metadata, for the choice of the endpoint and the access log."
	}
	if b.Headers == HeadersGAIE {
		text += " Shows the router the endpoints that another filter would have it choose from."
	}
	return text
}

func (b *builder) retryNote() string {
	text := "Only failures before an engine has seen the request, so that no prompt is computed twice; an engine's own 503 is such an answer. "
	if b.layout == LayoutOverride {
		return text + "Each attempt takes the next endpoint of the router's list."
	}
	return text + "A composite cluster tries its next member at each attempt, a fallback another endpoint."
}

func (b *builder) roomNote() string {
	if b.Body == BodyFullDuplex {
		return "Up to here Envoy keeps a body, so that it can be sent again to another endpoint: the default is 1 MiB. Longer ones pass, and are tried once."
	}
	if b.scope == filterOnly {
		return "Room for the whole body: the default is 1 MiB."
	}
	return "Room for the whole body, as the buffer filter has it: the default is 1 MiB."
}

func (b *builder) keylessNote() string {
	if b.layout == LayoutOverride {
		return "No pool's key fits. In this layout the pool's cluster is settled before the router is asked."
	}
	return "No pool's key fits. The router may still know the pool by the model; without its decision: 503."
}

func (b *builder) upgradeNote() string {
	if b.Body == BodyFullDuplex {
		return "None of these paths knows upgrades, and one would stay open until the idle timeout."
	}
	return "An upgrade with a body would hang in the buffer filter until the idle timeout."
}

// overrideNotes are those of a pool in the override_host layout.
func (b *builder) overrideNotes(p Pool) []note {
	return []note{
		{where: "routes " + p.Name + "/models", all: true, text: fmt.Sprintf("Any endpoint of pool %s can list its models.", p.Name)},
		{where: "routes " + p.Name + "/decided", all: true, text: fmt.Sprintf("Pool %s (%s). With a decision the cluster obeys its list, without one it draws.", p.Name, p.Match)},
		{where: b.inClusters(PoolCluster(p.Name)), text: fmt.Sprintf("Endpoints of pool %s.", p.Name)},
	}
}
