-- The journals of jobs. Needs no other part.

-- Whether any job of the queue has steps: if none has, the ends of jobs cost nothing.
local function any_steps(p) return c('EXISTS', p .. JOURNALS) == 1 end

local function drop_steps(p, id)
  if c('SREM', p .. JOURNALS, id) == 1 then c('UNLINK', p .. JOURNAL .. id) end
end
