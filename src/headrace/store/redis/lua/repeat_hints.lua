-- Lay the marker of each queue that has something to claim. It may have been lost.
-- KEYS: queues, and the home of limits. ARGV: 1 clock
local now = clock(ARGV[1])
for i = 1, #KEYS - 1, 2 do
  if claimable(KEYS[i], home(KEYS[i]), now) then wake(KEYS[i]) end
end
