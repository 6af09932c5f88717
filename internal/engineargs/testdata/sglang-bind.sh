# pool chat, endpoint 127.0.0.1:8000
# it connects to the router at tcp://127.0.0.1:5557 and sends its events there
# The router asks for what it missed of the events only with events: {replay: "tcp://127.0.0.1:6557"}.
# The replay port 6557 is bound on loopback: every process of the engine's host can read the latest batches
#   there, token ids included (--no-replay leaves it out).
# kvsteer reads SGLang's events but has not run with its engines yet.
# SGLang serves one name, "meta-llama/Llama-3.1-8B-Instruct"; requests for the pool's other models would be
#   refused.
# To serve the pool's adapters add: --enable-lora --lora-paths support=PATH
python3 -m sglang.launch_server --model-path "${MODEL:?set it to the name or the path of the model}" \
  --host 127.0.0.1 \
  --port 8000 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --page-size 16 \
  --enable-cache-report \
  --kv-events-config '{"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:6557"}'

# pool chat, endpoint 127.0.0.1:8001
# it connects to the router at tcp://127.0.0.1:5558 and sends its events there
# The router asks for what it missed of the events only with events: {replay: "tcp://127.0.0.1:6558"}.
# The replay port 6558 is bound on loopback: every process of the engine's host can read the latest batches
#   there, token ids included (--no-replay leaves it out).
# kvsteer reads SGLang's events but has not run with its engines yet.
# SGLang serves one name, "meta-llama/Llama-3.1-8B-Instruct"; requests for the pool's other models would be
#   refused.
# To serve the pool's adapters add: --enable-lora --lora-paths support=PATH
python3 -m sglang.launch_server --model-path "${MODEL:?set it to the name or the path of the model}" \
  --host 127.0.0.1 \
  --port 8001 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --page-size 16 \
  --enable-cache-report \
  --kv-events-config '{"publisher":"zmq","endpoint":"tcp://127.0.0.1:5558","replay_endpoint":"tcp://127.0.0.1:6558","topic":"kv@chat"}'

# pool chat, endpoint 127.0.0.1:8003
# it connects to the router at tcp://127.0.0.1:5561 and sends its events there
# The replay port 5571 is bound on loopback: every process of the engine's host can read the latest batches
#   there, token ids included (--no-replay leaves it out).
# kvsteer reads SGLang's events but has not run with its engines yet.
# SGLang serves one name, "meta-llama/Llama-3.1-8B-Instruct"; requests for the pool's other models would be
#   refused.
# To serve the pool's adapters add: --enable-lora --lora-paths support=PATH
python3 -m sglang.launch_server --model-path "${MODEL:?set it to the name or the path of the model}" \
  --host 127.0.0.1 \
  --port 8003 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --page-size 16 \
  --enable-cache-report \
  --kv-events-config '{"publisher":"zmq","endpoint":"tcp://127.0.0.1:5561","replay_endpoint":"tcp://127.0.0.1:5571"}'

# pool chat, endpoint 10.0.0.11:8000
# it binds tcp://*:5557, where the router dials it as tcp://10.0.0.11:5557
# EXPOSED: port 5557 is bound on every interface of the engine's host. Whoever reaches it reads the token ids
#   of every prompt, without a password and in clear text: let only the router's host through.
# What the router misses of the events costs what it knows of the cache: events: {replay:
#   "tcp://10.0.0.11:6557"} beside dial has the engine repeat it there, on another open port.
# kvsteer reads SGLang's events but has not run with its engines yet.
# SGLang serves one name, "meta-llama/Llama-3.1-8B-Instruct"; requests for the pool's other models would be
#   refused.
# To serve the pool's adapters add: --enable-lora --lora-paths support=PATH
python3 -m sglang.launch_server --model-path "${MODEL:?set it to the name or the path of the model}" \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --page-size 16 \
  --enable-cache-report \
  --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557"}'

# pool chat, endpoint 10.0.0.12:8000
# it binds tcp://*:5557, where the router dials it as tcp://10.0.0.12:5557
# EXPOSED: port 5557 is bound on every interface of the engine's host. Whoever reaches it reads the token ids
#   of every prompt, without a password and in clear text: let only the router's host through.
# EXPOSED: the replay port 5558 repeats the token ids of the latest prompts to whoever reaches it: let only
#   the router's host through.
# kvsteer reads SGLang's events but has not run with its engines yet.
# SGLang serves one name, "meta-llama/Llama-3.1-8B-Instruct"; requests for the pool's other models would be
#   refused.
# To serve the pool's adapters add: --enable-lora --lora-paths support=PATH
python3 -m sglang.launch_server --model-path "${MODEL:?set it to the name or the path of the model}" \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --page-size 16 \
  --enable-cache-report \
  --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'

# pool code, endpoint 10.0.0.21:8000
# no arguments: the configuration names no event source. To match its prompts exactly add to this endpoint
#   events: {listen: "tcp://127.0.0.1:5559"} when the router runs on its host, else events: {dial:
#   "tcp://10.0.0.21:5557"}.

# pool code, endpoint 127.0.0.1:8002
# no arguments: event source tcp://[::1]:5560 is an IPv6 address: engines bind an endpoint with "::" instead
#   of connecting to it, and do not bind IPv6. Use an IPv4 address
